"""What runs beside the untrusted program: the standard library alone, started by path and not by import.

__main__.py    the process that is started: makes the names below importable without the package
channel.py     length-prefixed JSON on a socket, for both sides
numbers.py     system calls by name and machine
kernel.py      the calls that Python does not offer
libraries.py   which directories a Python program needs
tree.py        the root directory of the namespaces level
landlock.py    what may be read and written, said to Landlock
filtering.py   the system calls that a program may make, as a seccomp filter
monitor.py     unshares, forks the zygote and ends with whoever started it
confining.py   one level's confinement, applied to the zygote once
serving.py     the zygote: one fork per job, deadlines, the reply
watching.py    threads and files counted while a program runs, where nothing else bounds them
holding.py     scratch directories on the host, and those that were left there
scratch.py     a directory made empty, whatever is in it
starting.py    the forked child on its way to the program: files, limits, filter
program.py     the program as `__main__`, to its end
calling.py     the program as a module with a function to call
"""
