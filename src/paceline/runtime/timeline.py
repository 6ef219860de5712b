"""Spans of a run's processes as trace-event JSON, which Perfetto and Chrome open.

The format is Google's Trace Event Format: complete events (`X`) with microseconds since the first of them, one named
thread per row.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

MICROSECONDS = 1e6
MOST_KEPT = 100_000
"""Largest number of waiting spans; older ones are dropped, so that memory is bounded."""
NAME, ORDER = "thread_name", "thread_sort_index"
"""The format's names for a row's label and its order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """An interval in which one thing was done."""

    row: str
    """Actor, for example `producer 0`."""
    name: str
    start: float
    """Seconds on a clock that all spans of a run share."""
    seconds: float


class Recorder:
    """Collector of spans from any thread."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._spans: deque[Span] = deque(maxlen=MOST_KEPT)

    @contextmanager
    def span(self, row: str, name: str) -> Iterator[None]:
        """Record the block as a span, whether it succeeds or not."""
        start = self.clock()
        try:
            yield
        finally:
            self.end(row, name, start)

    def end(self, row: str, name: str, start: float) -> None:
        """Record a span from `start` until now."""
        self._spans.append(Span(row=row, name=name, start=start, seconds=self.clock() - start))

    def phases(self, row: str, start: float, phases: Iterable[tuple[str, float]]) -> None:
        """Record phases known by their seconds alone, laid end to end from `start`."""
        for name, seconds in phases:
            self._spans.append(Span(row=row, name=name, start=start, seconds=seconds))
            start += seconds

    def take(self) -> list[Span]:
        """Return all spans so far and forget them."""
        return [self._spans.popleft() for _ in range(len(self._spans))]


def trace(spans: Sequence[Span]) -> dict[str, Any]:
    """Return the JSON object of a trace; rows are in the order of their first span.

    >>> [event["ts"] for event in trace([Span(row="a", name="b", start=5.0, seconds=0.5)])["traceEvents"][-1:]]
    [0.0]
    """
    ordered = sorted(spans, key=lambda span: span.start)
    rows = {row: number for number, row in enumerate(dict.fromkeys(span.row for span in ordered), start=1)}
    zero = ordered[0].start if ordered else 0.0
    about = [
        {"ph": "M", "pid": 1, "tid": number, "name": kind, "args": {key: value}}
        for row, number in rows.items()
        for kind, key, value in ((NAME, "name", row), (ORDER, "sort_index", number))
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
