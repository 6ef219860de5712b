"""What a tracker is sent, through its outages."""

import time
from collections import deque
from collections.abc import Callable, Mapping

from paceline.errors import first_line
from paceline.reports.trackers.libraries import Tracker

MOST_WAITING = 2000
"""Entries that wait for a tracker to answer again, a step's numbers each: about 10 MB."""
RETRY_SECONDS = 60.0
"""Between two tries at least."""
LARGEST_SHARE = 0.05
"""Largest share of the run's time that retries may take.

A library may wait for minutes before it says that a server is gone.
"""


class Sender:
    """A tracker whose outage ends no run: what it does not take waits and is sent, in order, when it answers again."""

    def __init__(
        self,
        name: str,
        tracker: Tracker,
        *,
        notify: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name` is the tracker's in `--report-to`; `notify` hears when an outage begins and ends, and what it cost."""
        self._name, self._tracker, self._notify, self._clock = name, tracker, notify, clock
        self.url = tracker.url
        self._waiting = deque[tuple[Mapping[str, float], int]]()
        self._given_up = 0
        self._is_out = False
        self._due = 0.0

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Send the numbers after those that wait, or have them wait; beyond `MOST_WAITING` the oldest are given up."""
        if len(self._waiting) == MOST_WAITING:
            self._waiting.popleft()
            self._given_up += 1
        self._waiting.append((dict(numbers), step))
        if not self._is_out or self._clock() >= self._due:
            self._send()

    def finish(self) -> None:
        """Try once more, close the tracker, and say what it was not sent."""
        self._send()
        missing = len(self._waiting) + self._given_up
        if missing:
            self._notify(
                f"--report-to {self._name} was not sent {missing} entries; the run's metrics.jsonl and evals.jsonl "
                "have them"
            )
        fault = fault_of(self._tracker.finish)
        if fault:
            self._notify(f"--report-to {self._name} could not be closed ({fault})")

    def _send(self) -> None:
        started, fault = self._clock(), ""
        while self._waiting and not fault:
            numbers, step = self._waiting[0]
            fault = fault_of(lambda: self._tracker.log(numbers, step))  # noqa: B023 - called at once
            if not fault:
                self._waiting.popleft()
        if fault and not self._is_out:
            self._notify(
                f"--report-to {self._name} takes no numbers ({fault}): the run goes on, and up to {MOST_WAITING} "
                "entries wait until it does"
            )
        if self._is_out and not fault:
            self._notify(f"--report-to {self._name} takes numbers again, and has been sent what waited")
        self._is_out, ended = bool(fault), self._clock()
        self._due = ended + max(RETRY_SECONDS, (ended - started) / LARGEST_SHARE)


def fault_of(call: Callable[[], None]) -> str:
    """Call a tracking library; what it raised, empty where it did not.

    A border: each library has its own exceptions for a server that is gone, and those of the libraries below it.
    """
    try:
        call()
    except Exception as error:  # noqa: BLE001 - told, counted, and tried again
        return f"{type(error).__name__}: {first_line(error)}"
    return ""
