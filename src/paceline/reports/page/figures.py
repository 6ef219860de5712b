"""Data to SVG: line charts with bands, stacked columns. Pure functions; colours are the page's CSS variables.

A drawing is complete without scripts: title, description, axes and legend. What lies within `g.data` is scaled by the
page's script when a reader zooms: so its dots are round ends of short lines, whose width no scaling changes.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from paceline.reports.format import percent, short
from paceline.reports.page.reading import Series


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
    """Like `linear_ticks`, at whole numbers: there is no half an optimiser step."""
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
    """Format ticks with as many decimals as they need, the same for all."""
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


_EDGE = 5
"""Pixels around the data's area in which its dots may still be drawn."""
_SMALLEST_SHARE_SPAN = 0.005
"""An axis of shares shows at least half a percentage point, so that rounding noise stays small."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartLine:
    """One line, or one layer of stacked columns."""

    label: str
    series: Series
    colour: int = 1
    """Index into the page's palette."""
    faint: bool = False
    """True: drawn thin and pale, as the raw values behind a smoothed line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """The area between two lines, for example a confidence interval."""

    low: Series
    high: Series
    colour: int = 1
    of: str = ""
    """Label of the line whose spread it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """One figure."""

    title: str
    unit: str
    """Unit shown beside the title; `share` draws percentages."""
    lines: tuple[ChartLine, ...]
    bands: tuple[Band, ...] = ()
    note: str = ""
    """One sentence below the drawing."""
    log: bool = False
    from_zero: bool = False
    stacked: bool = False
    """True: lines are layers of stacked columns, the first at the bottom."""

    @property
    def share(self) -> bool:
        """Return True if the values are shares of one."""
        return self.unit == "share"


def figure(chart: Chart, sizes: Sequence[tuple[int, int]] = ((340, 190),)) -> str:
    """A chart as an HTML figure with legend; several sizes, widest first, are for wide and narrow screens."""
    kinds = ["both"] if len(sizes) == 1 else ["wide", "narrow"]
    svgs = "".join(
        f'<div class="plot {kind}">{draw(chart, *size)}</div>' for kind, size in zip(kinds, sizes, strict=True)
    )
    unit = "" if chart.unit in ("share", "") else f' <span class="unit">{escape(chart.unit)}</span>'
    legend = "".join(
        f'<li><i class="c{line.colour}{" faint" if line.faint else ""}"></i>{escape(line.label)} '
        f"<b>{value_text(chart, line.series.last)}</b></li>"
        for line in chart.lines
        if line.series.last is not None
    )
    caption = f'<figcaption><h3>{escape(chart.title)}{unit}</h3><ul class="legend">{legend}</ul></figcaption>'
    data = escape(json.dumps(readings(chart), separators=(",", ":"), allow_nan=False))
    note = f'<p class="note">{escape(chart.note)}</p>' if chart.note else ""
    return f'<figure data-chart="{data}">{caption}{svgs}{note}</figure>'


def readings(chart: Chart) -> dict[str, object]:
    """Data for the page's script, which shows it under the pointer and computes axes from it: six figures per number.

    Keys: `steps`; `first`, the first of the steps that share a point, where several do; `lines`, each with `name`,
    `values` and, where it has a spread, `low` and `high`, all by step; whether values are shares, begin at zero, and
    keep their axis when steps are left out (`fixed`).
    """
    steps = sorted({step for line in chart.lines for step in line.series.steps})

    def six_figures(series: Series) -> list[float | None]:
        values = dict(zip(series.steps, series.values, strict=True))
        return [None if (value := values.get(step)) is None else float(f"{value:.6g}") for step in steps]

    spreads, lines = {band.of: band for band in chart.bands}, list[dict[str, object]]()
    for line in chart.lines:
        lines.append({"name": line.label, "values": six_figures(line.series)})
        if (band := spreads.get(line.label)) is not None:
            lines[-1] |= {"low": six_figures(band.low), "high": six_figures(band.high)}
    read: dict[str, object] = {"steps": steps, "lines": lines, "share": chart.share, "zero": chart.from_zero}
    read["fixed"] = chart.log or chart.stacked
    binned = next((line.series.first_steps for line in chart.lines if line.series.first_steps), ())
    return read | {"first": binned} if binned else read


def draw(chart: Chart, width: int, height: int) -> str:
    """The chart as one SVG element, or a sentence where there is nothing to draw."""
    if all(line.series.empty for line in chart.lines) or not _heights(chart):
        return '<p class="empty">nothing measured yet</p>'
    # the axes: the first and the last tick are the ends of the upright one
    ticks = _ticks(chart)
    labels = [short(tick) for tick in ticks] if chart.log else tick_labels(ticks, percent=chart.share)
    left = 12 + 6.6 * max(4, *(len(label) for label in labels))
    y = Scale(low=ticks[0], high=ticks[-1], start=height - 26, end=10, log=chart.log)
    steps = sorted({step for line in chart.lines for step in line.series.steps})
    room = 0.5 * _spacing(steps) if chart.stacked or len(steps) == 1 else 0.0
    x = Scale(low=steps[0] - room, high=steps[-1] + room, start=left, end=width - 14)
    rows = "".join(
        f'<path class="grid" d="M{x.start:.1f} {at:.1f}H{x.end:.1f}"/>'
        f'<text class="end" x="{x.start - 7:.1f}" y="{at + 3.8:.1f}">{escape(label)}</text>'
        for at, label in zip(map(y, ticks), labels, strict=True)
    )
    below = f'y="{y.start + 18:.1f}"'
    columns = "".join(
        f'<text class="mid" x="{x(tick):.1f}" {below}>{tick:,.0f}</text>'
        for tick in step_ticks(x.low, x.high, max(2, width // 75))
    )
    columns += f'<text class="end" x="{x.start - 14:.1f}" {below}>step</text>'
    # the data, in a window that leaves room for the dots at its edges
    body = _columns(chart, x, y) if chart.stacked else _bands_and_lines(chart, x, y)
    left, top, wide, high = x.start - _EDGE, y.end - _EDGE, x.end - x.start + 2 * _EDGE, y.start - y.end + 2 * _EDGE
    window = f'x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{high:.1f}"'
    corners = json.dumps([x.start, x.end, x.low, x.high, y.start, y.end, y.low, y.high])
    parts = [
        f"{line.label} from {value_text(chart, first)} to {value_text(chart, line.series.last)}"
        for line in chart.lines
        if line.series.last is not None and not line.faint
        for first in [next(value for value in line.series.values if value is not None)]
    ]
    description = escape(f"{chart.title}: {', '.join(parts)}")
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{description}" '
        f"data-frame='{corners}'><title>{description}</title>"
        f'<g class="axes">{rows}{columns}</g>'
        f'<svg {window} viewBox="{left:.1f} {top:.1f} {wide:.1f} {high:.1f}"><g class="data">{body}</g></svg>'
        f'<line class="cross" y1="{y.end:.0f}" y2="{y.start:.0f}"/></svg>'
    )


def value_text(chart: Chart, value: float) -> str:
    """Format a value of the chart."""
    if chart.share:
        return f"{short(100 * value)} %" if abs(value) < 0.01 else percent(value)
    return short(value)


def _ticks(chart: Chart) -> list[float]:
    values = _heights(chart)
    low, high = min(values), max(values)
    if chart.log:
        return log_ticks(low, high)
    if chart.from_zero or chart.stacked:
        low, high = min(low, 0.0), max(high, 0.0)
    if chart.share and high - low < _SMALLEST_SHARE_SPAN:
        high = min(1.0, low + _SMALLEST_SHARE_SPAN)
        low = high - _SMALLEST_SHARE_SPAN
    return linear_ticks(low, high)


def _heights(chart: Chart) -> list[float]:
    """All values on the upright axis; of columns their tops."""
    if chart.stacked:
        return [sum(value or 0.0 for value in column) for column in _by_step(chart)]
    series = [line.series for line in chart.lines] + [part for band in chart.bands for part in (band.low, band.high)]
    return [value for line in series for value in line.values if value is not None and (value > 0 or not chart.log)]


def _by_step(chart: Chart) -> Iterator[tuple[float | None, ...]]:
    return zip(*(line.series.values for line in chart.lines), strict=True)


def _spacing(steps: Sequence[float]) -> float:
    return min((b - a for a, b in pairwise(steps)), default=1.0)


def _bands_and_lines(chart: Chart, x: Scale, y: Scale) -> str:
    def point_of(step: float, value: float | None) -> tuple[float, float] | None:
        return None if value is None or (chart.log and value <= 0) else (x(step), y(value))

    body = ""
    for band in chart.bands:
        both = [
            (below, above)
            for step, low, high in zip(band.low.steps, band.low.values, band.high.values, strict=True)
            if (below := point_of(step, low)) is not None and (above := point_of(step, high)) is not None
        ]
        outline = [above for _, above in both] + [below for below, _ in reversed(both)]
        path = _moves(outline) + "Z" if len(both) > 1 else ""
        body += f'<path class="band c{band.colour}" d="{path}"/>'
    for line in chart.lines:
        # stretches of the line between steps without a number
        runs: list[list[tuple[float, float]]] = [[]]
        for step, value in zip(line.series.steps, line.series.values, strict=True):
            point = point_of(step, value)
            if point is not None:
                runs[-1].append(point)
            elif runs[-1]:
                runs.append([])
        style = f"c{line.colour}{' faint' if line.faint else ''}"
        path = "".join(_moves(run) for run in runs if len(run) > 1)
        body += f'<path class="line {style}" d="{path}"/>' if path else ""
        # dots where points are few or stand alone
        few = sum(len(run) for run in runs) <= 24 and not line.faint
        dots = [point for run in runs for point in run if few or len(run) == 1]
        marks = "".join(f"M{left:.1f} {top:.1f}h.01" for left, top in dots)
        body += f'<path class="dots {style}" d="{marks}"/>' if marks else ""
    return body


def _moves(run: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in run)


def _columns(chart: Chart, x: Scale, y: Scale) -> str:
    steps = chart.lines[0].series.steps
    width = max(0.8, 0.72 * (x(steps[0] + _spacing(steps)) - x(steps[0])))
    paths = [""] * len(chart.lines)
    for step, column in zip(steps, _by_step(chart), strict=True):
        base = 0.0
        for layer, value in enumerate(column):
            if value:
                top, bottom = y(base + value), y(base)
                paths[layer] += f"M{x(step) - width / 2:.1f} {bottom:.1f}h{width:.1f}V{top:.1f}h{-width:.1f}z"
                base += value
    return "".join(
        f'<path class="column c{line.colour}" d="{path}"/>' for line, path in zip(chart.lines, paths, strict=True)
    )
