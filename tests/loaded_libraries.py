"""What a run imports, read once by a server that forks a process per run: a start costs milliseconds, not seconds.

Nothing here may start a thread, which a fork would leave behind.
"""

import gc

import tests.laws.layouts  # noqa: F401 - the import is the point, here and above

gc.freeze()  # a fork need not look through what it will never free
