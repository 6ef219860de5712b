"""What a process did last: signs of progress from wherever work is done, for a watchdog to read.

There is one `HEARTBEAT` per process. Whatever works writes to it and reads nothing of it, so that no result can depend
on it; handed down through every constructor it would be in each of them and say no more.
"""

import time
from collections.abc import Callable
from pathlib import Path


class Heartbeat:
    """The latest event of each actor. From any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._events = dict[str, tuple[float, str]]()
        self.count = 0
        """Of events so far: as long as it stands still, nothing goes on."""
        self.latest = "nothing yet"
        """The last event of all."""
        self.queues = dict[str, Callable[[], int]]()
        """What waits where, by name."""
        self.stack_dumps = dict[str, Callable[[Path], None]]()
        """What has other processes write into a folder where their threads stand, by name."""

    def beat(self, who: str, what: str) -> None:
        """Something was done, or begun."""
        self._events[who] = self._clock(), what
        self.latest = f"{who}: {what}"
        self.count += 1

    def events(self) -> list[str]:
        """The last event of each actor, the latest first."""
        now = self._clock()
        last = sorted(self._events.copy().items(), key=lambda one: -one[1][0])
        return [f"{who}: {what}, {now - at:.1f} s ago" for who, (at, what) in last]

    def waiting(self) -> list[str]:
        """How much waits in each queue."""
        return [f"{name}: {depth()}" for name, depth in self.queues.copy().items()]


HEARTBEAT = Heartbeat()
