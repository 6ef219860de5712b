"""Child processes with deadlines: a warm parent that forks, workers of a pool, and what ends with what.

starting.py      a fresh interpreter of this installation as a child
warm_parent.py   a process that has loaded some code, and its forks, as the process that uses them sees them
forking.py       what runs in these: a monitor, the warm parent, its forks, and what they print
pool.py          workers that compute one request after another, and are replaced when one dies; what runs in them
children.py      processes end with their parent, take with them what they have started, and talk with it
scratch.py       scratch directories, and emptying one, whatever is in it

The last two need the standard library alone: the sandbox uses them in its confinement too.
"""
