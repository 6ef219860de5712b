"""What a run imports, read once by a server that forks a process per run: a start costs milliseconds, not seconds.

Nothing here may start a thread, which a fork would leave behind.
"""

import paceline.cli.main
import paceline.reports.page.html
import paceline.training.session  # noqa: F401 - the import is the point
