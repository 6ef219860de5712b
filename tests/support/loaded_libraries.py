"""What a run imports, read once by a server that forks a process per run: a start costs milliseconds, not seconds.

Nothing here may start a thread, which a fork would leave behind.
"""

import gc

# the imports are the point, here and above
import paceline.cli.train
import paceline.compat.trl.trainer  # noqa: F401
import tests.laws.layouts  # noqa: F401

gc.freeze()  # a fork need not look through what it will never free
