"""The page of a run that still runs: written anew as often as is nearly free, and when an error or a signal ends it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from paceline.errors import CheckpointError, ProcessLost, first_line
from paceline.reports.page.html import write_report

LEAST_SECONDS = 30.0
"""Between two pages: a person who loads it again sees something new."""
LARGEST_SHARE = 0.01
"""Largest share of the run's time that pages may take: reading a long run's files takes seconds."""


def draw_page(directory: Path, write: Callable[[Path], Path] = write_report) -> Path | str:
    """Write a run's page; where it lies, or a sentence on why there is none.

    A border: a page is drawn of whatever numbers a run has come to, and nothing of the run depends on it, so no error
    of drawing may end a training of days.
    """
    try:
        return write(directory)
    except CheckpointError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - told, and `paceline report` raises it
        return (
            f"{type(error).__name__} while drawing it: {first_line(error)}; `paceline report {directory}` shows where"
        )


class RunningReport:
    """Writes `report.html` at the first call, then whenever it is due; within `with`, also where an error ends the run.

    An interrupt or the loss of a process leaves no time for a page: the process may be ended at once.
    """

    def __init__(
        self,
        directory: Path,
        *,
        notify: Callable[[str], None],
        write: Callable[[Path], Path] = write_report,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`notify` is told of a page that cannot be written: no run ends for its page."""
        self._directory, self._notify, self._write, self._clock = directory, notify, write, clock
        self._due: float | None = None
        self._fault = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, ProcessLost):
            self.write()

    def refresh(self) -> None:
        """Something was written down: a page, if it is due."""
        if self._due is None or self._clock() >= self._due:
            self.write()

    def write(self) -> None:
        """A page of the run as it stands. The same fault is told once."""
        started = self._clock()
        page = draw_page(self._directory, self._write)
        if isinstance(page, str) and page != self._fault:
            self._fault = page
            self._notify(f"the run goes on without its page: {page}")
        ended = self._clock()
        self._due = ended + max(LEAST_SECONDS, (ended - started) / LARGEST_SHARE)
