"""Run untrusted Python programs, isolated from the trainer and from one another, or refuse to.

programs.py   a job, its outcome, also by a zygote's reply, and the interface of everything that runs programs
levels.py     open_sandbox, the levels of isolation, and the hostile programs that one must hold against
local.py      LocalSandbox: slots, retries, threads, forks
interpreters.py  LocalInterpreter: pieces of code one after another, which share their variables
kept_memory.py  what interpreters may keep between two pieces of code
remote.py     a judge service behind an address
inside/       what runs in the confined process, by the standard library alone
"""
