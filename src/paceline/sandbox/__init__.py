"""Runs untrusted Python programs, isolated from the trainer and from one another, or refuses.

levels.py     open_sandbox, and which level of isolation holds on this machine
probing.py    hostile programs that a level must hold against before it counts
local.py      LocalSandbox: slots, retries, threads, forks
zygote.py     one confined process that forks a child for each job
outcome.py    what its reply means
remote.py     a judge service behind an address; remote_call.py, a function's call as a program for it
inside/       what runs in the confined process, by the standard library alone
"""

from paceline.sandbox.levels import Level, LevelReport, open_sandbox, probe_levels

__all__ = ["Level", "LevelReport", "open_sandbox", "probe_levels"]
