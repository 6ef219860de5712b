"""Latest events of this process, for the watchdog to read.

There is one `HEARTBEAT` per process. Workers only write to it, so no result can depend on it. A global spares every
constructor an argument.
"""

import time
from collections.abc import Callable
from pathlib import Path


class Heartbeat:
    """The latest event of each actor; thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._events = dict[str, tuple[float, str]]()
        self.count = 0
        """Number of events so far; the process stands still while it does not change."""
        self.latest = "nothing yet"
        """Latest event of all actors."""
        self.queues = dict[str, Callable[[], int]]()
        """Lengths of queues by name."""
        self.stack_dumps = dict[str, Callable[[Path], None]]()
        """Functions by name that make other processes write their stacks into a folder."""

    def beat(self, who: str, what: str) -> None:
        """Record that an actor has done or begun something."""
        self._events[who] = self._clock(), what
        self.latest = f"{who}: {what}"
        self.count += 1

    def events(self) -> list[str]:
        """Describe the latest event of each actor, newest first."""
        now = self._clock()
        last = sorted(self._events.copy().items(), key=lambda one: -one[1][0])
        return [f"{who}: {what}, {now - at:.1f} s ago" for who, (at, what) in last]

    def waiting(self) -> list[str]:
        """Describe the length of each queue."""
        return [f"{name}: {depth()}" for name, depth in self.queues.copy().items()]


HEARTBEAT = Heartbeat()
