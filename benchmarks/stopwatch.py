"""Seconds of the parts of a program that is left as it is: methods of its objects are timed from outside.

A part's seconds are its own: what it calls, where that is timed too, counts there. So the parts add up to the whole.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any


class Stopwatch:
    """Times calls by phase. Costs about a microsecond per call; on a GPU also the overlap of host and device."""

    def __init__(self, *, synchronize: Callable[[], None] | None = None, clock: Callable[[], float] | None = None):
        """`synchronize` waits for the device, so that what was asked of it counts where it was asked."""
        self._synchronize, self._clock = synchronize, clock or time.perf_counter
        self._open: list[str] = []
        self._since = 0.0
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside as this phase, but for phases within it."""
        self._lap()
        self._open.append(name)
        try:
            yield
        finally:
            self._lap()
            self._open.pop()
            self.calls[name] += 1

    def watch(self, owner: object, method: str, phase: str, *, told: Callable[..., None] | None = None) -> None:
        """Count every later call of `owner`'s method as `phase`; `told` gets the arguments before each call.

        Raises:
            AttributeError: there is no such method.
        """
        original = getattr(owner, method)

        @wraps(original)
        def timed(*arguments: Any, **named: Any) -> Any:
            if told is not None:
                told(*arguments, **named)
            with self.phase(phase):
                return original(*arguments, **named)

        setattr(owner, method, timed)

    def read(self) -> tuple[dict[str, float], dict[str, int]]:
        """Seconds and calls of every phase since the last reading."""
        read = dict(self.seconds), dict(self.calls)
        self.seconds, self.calls = Counter(), Counter()
        return read

    def _lap(self) -> None:
        if self._synchronize is not None:
            self._synchronize()
        now = self._clock()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now
