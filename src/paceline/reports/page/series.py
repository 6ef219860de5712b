"""Records to series: one number per step, smoothed, and thinned where there are more steps than pixels."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline.metrics.definitions import Record
from paceline.metrics.statistics import mean_of
from paceline.reports.page.reading import value_at

MAX_POINTS = 400
"""Points of one line, at most: about one per pixel of a chart."""

Values = tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One line of a chart; None is a step that has no such number."""

    steps: tuple[float, ...]
    """Where each point stands: of several steps in one, the last."""
    values: Values
    first_steps: tuple[float, ...] = ()
    """The first of the steps of each point; empty where every step has its own."""

    @property
    def last(self) -> float | None:
        """The newest number."""
        return next((value for value in reversed(self.values) if value is not None), None)

    @property
    def empty(self) -> bool:
        """Return True if there is no number at all."""
        return self.last is None


def bin_size(num_steps: int) -> int:
    """Steps that share one point."""
    return max(1, math.ceil(num_steps / MAX_POINTS))


def metric(records: Sequence[Record], *keys: str, reduce: Callable[[Sequence[float]], float] = mean_of) -> Series:
    """The number at `keys` of every step; long runs put `bin_size` steps into one point by `reduce`."""
    size = bin_size(len(records))
    bins = [records[start : start + size] for start in range(0, len(records), size)]
    return Series(
        steps=tuple(float(part[-1]["step"]) for part in bins),
        values=tuple(_reduced([value_at(record, *keys) for record in part], reduce) for part in bins),
        first_steps=tuple(float(part[0]["step"]) for part in bins) if size > 1 else (),
    )


def scaled(series: Series, by: Series) -> Series:
    """Each value divided by the other series' value of the same step."""
    pairs = zip(series.values, by.values, strict=True)
    return replace(series, values=tuple(a / b if a is not None and b else None for a, b in pairs))


def smoothed(series: Series, window: int) -> Series:
    """Centred moving mean over `window` points (odd), over those of them that exist near both ends."""
    reach, values = window // 2, series.values
    around = (values[max(0, i - reach) : i + reach + 1] for i in range(len(values)))
    return replace(series, values=tuple(_reduced(part, mean_of) for part in around))


def total(records: Sequence[Record], *keys: str) -> float:
    """Sum over all steps; steps without the number add nothing."""
    return math.fsum(value for record in records if (value := value_at(record, *keys)) is not None)


def _reduced(values: Sequence[float | None], reduce: Callable[[Sequence[float]], float]) -> float | None:
    present = [value for value in values if value is not None]
    return reduce(present) if present else None
