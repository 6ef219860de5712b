"""Run untrusted Python programs, isolated from the trainer and from one another, or refuse to.

programs.py   a job, its outcome, and the interface of everything that runs programs
levels.py     open_sandbox, and which level of isolation holds on this machine
probing.py    hostile programs that a level must hold against before it counts
local.py      LocalSandbox: slots, retries, threads, forks
zygote.py     one confined process that forks a child for each job
outcome.py    what its reply means
remote.py     a judge service behind an address; remote_call.py, a function's call as a program for it
inside/       what runs in the confined process, by the standard library alone
"""
