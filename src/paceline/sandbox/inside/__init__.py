"""Code that runs next to the untrusted program: standard library only, started by path and not by import.

__main__.py    the started process: makes the names below importable without the package
channel.py     length-prefixed JSON on a socket, for both sides
numbers.py     system calls by name and machine
kernel.py      the calls that Python does not offer
libraries.py   directories that a Python program needs
tree.py        the root directory of the namespaces level
landlock.py    Landlock rules of what may be read and written
filtering.py   the system calls that a program may make, as a seccomp filter
monitor.py     unshares, forks the zygote and ends with the trainer
confining.py   one level's confinement, applied to the zygote once
serving.py     the zygote: one fork per job, deadlines, the reply
watching.py    counts of threads and files while a program runs, where nothing else limits them
holding.py     scratch directories on the host, and removal of abandoned ones
scratch.py     emptying of a directory, whatever is in it
starting.py    the forked child before the program: files, limits, filter
program.py     the program as `__main__`, to its end
calling.py     the program as a module with a function to call
"""
