"""What this process does, reported once and read by the watchdog, the display and the trace.

There is one `ACTIVITY` per process. Work only writes to it, so no result can depend on it. A global spares every
constructor an argument. Other processes send their count and latest event with their signs of life.

The trace is Google's Trace Event Format, which Perfetto and Chrome open: complete events (`X`) with microseconds since
the first of them, one named thread per row.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

Phase = Literal["generate", "reward", "update"]
"""Parts of a step; the first two are parts of an evaluation too."""
RUN = "run"
"""The actor that is the run itself, in the process that has its loop."""
MICROSECONDS = 1e6


class Progress(Protocol):
    """Display of the progress, called from any thread. Calls must be cheap: engines report each position."""

    def begin(self, what: str) -> None:
        """Begin another part of the run, such as `step 12`, which ends the phases before it."""

    def phase(self, name: Phase, done: int, of: int, *, tokens: int = 0) -> None:
        """Show that `done` of `of` parts of a phase are done; see `Activity.advance`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeSpan:
    """An interval in which one thing was done."""

    row: str
    """Actor, for example `sampler 0`."""
    name: str
    start: float
    """Seconds on the clock of the process that writes the trace."""
    seconds: float


class Activity:
    """Latest event of each actor, displays to inform, and spans where a trace is wanted; thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.count = 0
        """Number of events so far; the process stands still while it does not change."""
        self.doing = "start"
        """Latest part of the run."""
        self.queues = dict[str, Callable[[], int]]()
        """Lengths of queues by name."""
        self.stack_dumps = dict[str, Callable[[Path], None]]()
        """Functions by name that make other processes write their stacks into a folder."""
        self.displays = list[Progress]()
        self.spans: list[TimeSpan] | None = None
        """Spans so far; None: no trace is wanted."""
        self._events = dict[str, tuple[float, str | tuple[int, int, int]]]()
        self._newest = ""

    def beat(self, who: str, what: str) -> float:
        """Record that an actor has done or begun something; return the time, for `end`."""
        now = self.clock()
        self._events[who], self._newest = (now, what), who
        self.count += 1
        return now

    def begin(self, what: str) -> None:
        """Turn to another part of the run, such as `step 12`."""
        self.beat(RUN, what)
        self.doing = what
        for display in self.displays:
            display.begin(what)

    def advance(self, phase: Phase, done: int, of: int, *, tokens: int = 0) -> None:
        """Report that `done` of `of` parts of a phase are done: ended completions, called reward functions or
        micro-batches. `tokens` counts all tokens generated in the phase so far, also in unfinished completions."""
        # as `beat`, without a sentence that nobody may read
        self._events[phase], self._newest = (self.clock(), (done, of, tokens)), phase
        self.count += 1
        for display in self.displays:
            display.phase(phase, done, of, tokens=tokens)

    @contextmanager
    def span(self, who: str, what: str) -> Iterator[None]:
        """Report the beginning and the end of the block, whether it succeeds or not."""
        started = self.beat(who, what)
        try:
            yield
        finally:
            self.end(who, what, started)

    def end(self, who: str, what: str, started: float) -> None:
        """Report the end of something."""
        self.phases(who, started, [(what, self.beat(who, f"{what} ended") - started)])

    def phases(self, who: str, start: float, phases: Iterable[tuple[str, float]]) -> None:
        """Add phases, of which only the durations are known, to the trace, end to end from `start`."""
        for name, seconds in phases:
            if self.spans is not None:
                self.spans.append(TimeSpan(row=who, name=name, start=start, seconds=seconds))
            start += seconds

    @property
    def latest(self) -> str:
        """Describe the latest event of all actors."""
        newest = self._newest
        return _event(newest, self._events[newest][1]) if newest else "nothing yet"

    def events(self) -> list[str]:
        """Describe the latest event of each actor, newest first."""
        now = self.clock()
        last = sorted(((at, who, what) for who, (at, what) in self._events.copy().items()), key=lambda event: -event[0])
        return [f"{_event(who, what)}, {now - at:.1f} s ago" for at, who, what in last]

    def waiting(self) -> list[str]:
        """Describe the length of each queue."""
        return [f"{name}: {depth()}" for name, depth in self.queues.copy().items()]


ACTIVITY = Activity()


def _event(who: str, what: str | tuple[int, int, int]) -> str:
    if isinstance(what, str):
        return f"{who}: {what}"
    done, of, tokens = what
    return f"{who}: {done} of {of}, {tokens} tokens" if tokens else f"{who}: {done} of {of}"


def trace(spans: Sequence[TimeSpan]) -> dict[str, Any]:
    """Return the JSON object of a trace; rows are in the order of their first span.

    >>> [event["ts"] for event in trace([TimeSpan(row="a", name="b", start=5.0, seconds=0.5)])["traceEvents"][-1:]]
    [0.0]
    """
    ordered = sorted(spans, key=lambda span: span.start)
    rows = {row: number for number, row in enumerate(dict.fromkeys(span.row for span in ordered), start=1)}
    zero = ordered[0].start if ordered else 0.0
    about = [
        {"ph": "M", "pid": 1, "tid": number, "name": kind, "args": {key: value}}
        for row, number in rows.items()
        for kind, key, value in (("thread_name", "name", row), ("thread_sort_index", "sort_index", number))
    ]
    events = [
        {
            "ph": "X",
            "pid": 1,
            "tid": rows[span.row],
            "name": span.name,
            "ts": (span.start - zero) * MICROSECONDS,
            "dur": span.seconds * MICROSECONDS,
        }
        for span in ordered
    ]
    return {"displayTimeUnit": "ms", "traceEvents": [*about, *events]}
