"""Axes: bounds and ticks at numbers that people count in, and the map from value to pixel."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.reports.format import short


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """Maps `low`..`high` to pixels `start`..`end`, linearly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Pixel of a value."""
        low, high, at = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (at - low) / (high - low) * (self.end - self.start)


def nice_step(span: float, ticks: int) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that cuts `span` into at most `ticks` parts.

    >>> nice_step(100, 5), nice_step(0.7, 4)
    (20.0, 0.2)
    """
    raw = span / ticks
    magnitude = 10.0 ** math.floor(math.log10(raw))
    return next(m * magnitude for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * magnitude >= raw * (1 - 1e-9))


def linear_ticks(low: float, high: float, ticks: int = 4) -> list[float]:
    """Multiples of one nice step from at or below `low` to at or above `high`: the axis begins and ends on a tick.

    >>> linear_ticks(0.24, 1.13), linear_ticks(0.0, 0.0)
    ([0.0, 0.25, 0.5, 0.75, 1.0, 1.25], [0.0, 0.25, 0.5, 0.75, 1.0])
    """
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        room = abs(high) / 2 or 1.0
        low, high = (low - room if low != 0 else low), high + room
    step = nice_step(high - low, ticks)
    return [index * step for index in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)]


def step_ticks(low: float, high: float, ticks: int) -> list[float]:
    """As `linear_ticks`, at whole numbers: there is no half an optimiser step."""
    if high <= low:
        return [low]
    step = max(1.0, nice_step(high - low, ticks))
    step = step if step == int(step) else 5.0
    return [index * step for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def log_ticks(low: float, high: float, ticks: int = 4) -> list[float]:
    """Powers of ten around positive numbers; every second or third when there are many.

    >>> log_ticks(2e-7, 3e-6)
    [1e-07, 1e-06, 1e-05]
    """
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    last = max(last, first + 1)
    stride = math.ceil((last - first) / ticks)
    return [10.0**power for power in range(first, last + stride, stride)]


def tick_labels(ticks: Sequence[float], *, percent: bool = False) -> list[str]:
    """Labels with as many decimals as the ticks need, the same for all."""
    factor = 100.0 if percent else 1.0
    if len(ticks) < 2:
        return [short(tick * factor) + (" %" if percent else "") for tick in ticks]
    step = (ticks[1] - ticks[0]) * factor
    largest = max(abs(tick) for tick in ticks) * factor
    if largest >= 1e5 or largest < 1e-3:
        return [short(tick * factor) for tick in ticks]
    # one decimal more where a step is 2.5 times a power of ten
    power = math.floor(math.log10(step) + 1e-9)
    decimals = max(0, -power + (abs(step / 10.0**power - 2.5) < 1e-6))
    return [f"{tick * factor:,.{decimals}f}" + (" %" if percent else "") for tick in ticks]
