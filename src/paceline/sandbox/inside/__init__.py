"""Code that runs next to the untrusted program: standard library only, started by path and not by import.

Of `processes` it has channels, scratch directories, and what ends with what.

__main__.py    the started process: makes the names below importable without the package
kernel.py      system calls by name and machine, and those that Python does not offer
landlock.py    Landlock rules of what may be read and written
filtering.py   the system calls that a program may make, as a seccomp filter
monitor.py     unshares, forks the zygote and ends with the trainer
confining.py   one level's confinement, applied to the zygote once; the root directory of the namespaces level
serving.py     the zygote: one fork per job or interpreter, deadlines, the reply
watching.py    counts of threads and files while a program runs, where nothing else limits them
starting.py    the forked child before the program: files, limits, filter
program.py     runs the program: as `__main__`, as a module with a function to call, or piece after piece
"""
