"""Data to SVG: line charts with bands, stacked columns. Pure functions; colours are the page's CSS variables.

A drawing is complete without scripts: title, description, axes and legend. What lies within `g.data` is scaled by the
page's script when a reader zooms: so its dots are round ends of short lines, whose width no scaling changes.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from paceline.reports.format import percent, short
from paceline.reports.page.scales import Scale, linear_ticks, log_ticks, step_ticks, tick_labels
from paceline.reports.page.series import Series

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
    """Drawn thin and pale: the raw values behind a smoothed line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """The area between two lines, for example a confidence interval."""

    low: Series
    high: Series
    colour: int = 1
    of: str = ""
    """Label of the line that it is the spread of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """One figure: what is drawn and how it is read."""

    title: str
    unit: str
    """Shown beside the title; `share` draws percentages."""
    lines: tuple[ChartLine, ...]
    bands: tuple[Band, ...] = ()
    note: str = ""
    """One sentence below the drawing."""
    log: bool = False
    from_zero: bool = False
    stacked: bool = False
    """Lines are layers of columns, the first at the bottom."""

    @property
    def share(self) -> bool:
        """Return True if the values are shares of one."""
        return self.unit == "share"


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """The two scales of a drawing of `width` by `height` pixels."""

    width: int
    height: int
    x: Scale
    y: Scale


def figure(chart: Chart, sizes: Sequence[tuple[int, int]] = ((340, 190),)) -> str:
    """A chart as an HTML figure with legend; several sizes, widest first, are for wide and narrow screens."""
    drawings = [draw(chart, width, height) for width, height in sizes]
    kinds = ["both"] if len(sizes) == 1 else ["wide", "narrow"]
    unit = "" if chart.unit in ("share", "") else f' <span class="unit">{escape(chart.unit)}</span>'
    note = f'<p class="note">{escape(chart.note)}</p>' if chart.note else ""
    svgs = "".join(f'<div class="plot {kind}">{svg}</div>' for kind, svg in zip(kinds, drawings, strict=True))
    heading = f"<h3>{escape(chart.title)}{unit}</h3>"
    data = escape(json.dumps(readings(chart), separators=(",", ":"), allow_nan=False))
    caption = f"<figcaption>{heading}{_legend(chart)}</figcaption>"
    return f'<figure data-chart="{data}">{caption}{svgs}{note}</figure>'


def readings(chart: Chart) -> dict[str, object]:
    """What the page's script shows under the pointer, and finds its axes by: every number to six figures.

    Keys: `steps`; `first`, the first of the steps that share a point, where several do; `lines`, each with `name`,
    `values` and, where it has a spread, `low` and `high`, all by step; whether values are shares, begin at zero, and
    keep their axis when steps are left out (`fixed`).
    """
    steps = sorted({step for line in chart.lines for step in line.series.steps})
    spreads = {band.of: band for band in chart.bands}
    lines = []
    for line in chart.lines:
        one: dict[str, object] = {"name": line.label, "values": _six_figures(line.series, steps)}
        if line.label in spreads:
            band = spreads[line.label]
            one |= {"low": _six_figures(band.low, steps), "high": _six_figures(band.high, steps)}
        lines.append(one)
    read: dict[str, object] = {"steps": steps, "lines": lines, "share": chart.share, "zero": chart.from_zero}
    read["fixed"] = chart.log or chart.stacked
    binned = next((line.series.first_steps for line in chart.lines if line.series.first_steps), ())
    return read | {"first": binned} if binned else read


def _six_figures(series: Series, steps: Sequence[float]) -> list[float | None]:
    values = dict(zip(series.steps, series.values, strict=True))
    return [None if (value := values.get(step)) is None else float(f"{value:.6g}") for step in steps]


def draw(chart: Chart, width: int, height: int) -> str:
    """The chart as one SVG element, or a sentence where there is nothing to draw."""
    if all(line.series.empty for line in chart.lines) or (chart.log and not _positive(chart)):
        return '<p class="empty">nothing measured yet</p>'
    frame, grid = _axes(chart, width, height)
    body = _columns(chart, frame) if chart.stacked else _bands_and_lines(chart, frame)
    x, y = frame.x, frame.y
    left, top, wide, high = x.start - _EDGE, y.end - _EDGE, x.end - x.start + 2 * _EDGE, y.start - y.end + 2 * _EDGE
    place = f'x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{high:.1f}"'
    corners = json.dumps([x.start, x.end, x.low, x.high, y.start, y.end, y.low, y.high])
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(_description(chart))}" '
        f"data-frame='{corners}'><title>{escape(_description(chart))}</title>{grid}"
        f'<svg {place} viewBox="{left:.1f} {top:.1f} {wide:.1f} {high:.1f}"><g class="data">{body}</g></svg>'
        f'<line class="cross" y1="{y.end:.0f}" y2="{y.start:.0f}"/></svg>'
    )


def value_text(chart: Chart, value: float) -> str:
    """A value of the chart in words."""
    if chart.share:
        return f"{short(100 * value)} %" if abs(value) < 0.01 else percent(value)
    return short(value)


def _legend(chart: Chart) -> str:
    items = "".join(
        f'<li><i class="c{line.colour}{" faint" if line.faint else ""}"></i>{escape(line.label)} '
        f"<b>{value_text(chart, line.series.last)}</b></li>"
        for line in chart.lines
        if line.series.last is not None
    )
    return f'<ul class="legend">{items}</ul>'


def _description(chart: Chart) -> str:
    parts = [
        f"{line.label} from {value_text(chart, first)} to {value_text(chart, line.series.last)}"
        for line in chart.lines
        if line.series.last is not None and not line.faint
        for first in [next(value for value in line.series.values if value is not None)]
    ]
    return f"{chart.title}: {', '.join(parts)}"


def _axes(chart: Chart, width: int, height: int) -> tuple[Frame, str]:
    ticks = _ticks(chart)
    labels = [short(tick) for tick in ticks] if chart.log else tick_labels(ticks, percent=chart.share)
    left = 12 + 6.6 * max(4, *(len(label) for label in labels))
    y = Scale(low=ticks[0], high=ticks[-1], start=height - 26, end=10, log=chart.log)
    steps = sorted({step for line in chart.lines for step in line.series.steps})
    room = 0.5 * _spacing(steps) if chart.stacked or len(steps) == 1 else 0.0
    x = Scale(low=steps[0] - room, high=steps[-1] + room, start=left, end=width - 14)
    frame = Frame(width=width, height=height, x=x, y=y)
    return frame, _grid(frame, list(zip(ticks, labels, strict=True)), step_ticks(x.low, x.high, max(2, width // 75)))


def _grid(frame: Frame, y_ticks: Sequence[tuple[float, str]], x_ticks: Sequence[float]) -> str:
    left, right, bottom = frame.x.start, frame.x.end, frame.y.start
    rows = "".join(
        f'<path class="grid" d="M{left:.1f} {y:.1f}H{right:.1f}"/>'
        f'<text class="end" x="{left - 7:.1f}" y="{y + 3.8:.1f}">{escape(label)}</text>'
        for y, label in ((frame.y(tick), label) for tick, label in y_ticks)
    )
    columns = "".join(
        f'<text class="mid" x="{frame.x(tick):.1f}" y="{bottom + 18:.1f}">{tick:,.0f}</text>' for tick in x_ticks
    )
    return f'<g class="axes">{rows}{columns}<text class="end" x="{left - 14:.1f}" y="{bottom + 18:.1f}">step</text></g>'


def _ticks(chart: Chart) -> list[float]:
    """Axis ticks, the first and the last of which are the axis' ends."""
    if chart.log:
        positive = _positive(chart)
        return log_ticks(min(positive), max(positive))
    values = _stack_heights(chart) if chart.stacked else list(_values(chart))
    low, high = min(values), max(values)
    if chart.from_zero or chart.stacked:
        low, high = min(low, 0.0), max(high, 0.0)
    if chart.share and high - low < _SMALLEST_SHARE_SPAN:
        high = min(1.0, low + _SMALLEST_SHARE_SPAN)
        low = high - _SMALLEST_SHARE_SPAN
    return linear_ticks(low, high)


def _values(chart: Chart) -> Iterator[float]:
    series = [line.series for line in chart.lines] + [part for band in chart.bands for part in (band.low, band.high)]
    return (value for one in series for value in one.values if value is not None)


def _positive(chart: Chart) -> list[float]:
    return [value for value in _values(chart) if value > 0]


def _stack_heights(chart: Chart) -> list[float]:
    return [sum(value or 0.0 for value in column) for column in _by_step(chart)]


def _by_step(chart: Chart) -> Iterator[tuple[float | None, ...]]:
    return zip(*(line.series.values for line in chart.lines), strict=True)


def _spacing(steps: Sequence[float]) -> float:
    return min((b - a for a, b in pairwise(steps)), default=1.0)


def _bands_and_lines(chart: Chart, frame: Frame) -> str:
    place = _placer(chart, frame)
    bands = "".join(f'<path class="band c{band.colour}" d="{_band_path(band, place)}"/>' for band in chart.bands)
    return bands + "".join(_line(line, place) for line in chart.lines)


Place = Callable[[float, float | None], tuple[float, float] | None]


def _placer(chart: Chart, frame: Frame) -> Place:
    """Step and value to pixels; None where there is nothing to draw, as a zero on a logarithmic axis."""

    def place(step: float, value: float | None) -> tuple[float, float] | None:
        if value is None or (chart.log and value <= 0):
            return None
        return frame.x(step), frame.y(value)

    return place


def _line(line: ChartLine, place: Place) -> str:
    style = f"c{line.colour}{' faint' if line.faint else ''}"
    runs = list(_unbroken(line.series, place))
    path = "".join(_moves(run) for run in runs if len(run) > 1)
    few = sum(len(run) for run in runs) <= 24 and not line.faint
    dots = [point for run in runs for point in run if few or len(run) == 1]
    marks = "".join(f"M{x:.1f} {y:.1f}h.01" for x, y in dots)
    marked = f'<path class="dots {style}" d="{marks}"/>' if marks else ""
    return f'<path class="line {style}" d="{path}"/>{marked}' if path else marked


def _unbroken(series: Series, place: Place) -> Iterator[list[tuple[float, float]]]:
    """Stretches of the line between steps without a number."""
    run: list[tuple[float, float]] = []
    for step, value in zip(series.steps, series.values, strict=True):
        point = place(step, value)
        if point is not None:
            run.append(point)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _moves(run: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in run)


def _band_path(band: Band, place: Place) -> str:
    both = [
        (below, above)
        for step, low, high in zip(band.low.steps, band.low.values, band.high.values, strict=True)
        if (below := place(step, low)) is not None and (above := place(step, high)) is not None
    ]
    outline = [above for _, above in both] + [below for below, _ in reversed(both)]
    return _moves(outline) + "Z" if len(both) > 1 else ""


def _columns(chart: Chart, frame: Frame) -> str:
    steps = chart.lines[0].series.steps
    width = max(0.8, 0.72 * (frame.x(steps[0] + _spacing(steps)) - frame.x(steps[0])))
    paths = [""] * len(chart.lines)
    for step, column in zip(steps, _by_step(chart), strict=True):
        base = 0.0
        for layer, value in enumerate(column):
            if value:
                top, bottom = frame.y(base + value), frame.y(base)
                paths[layer] += f"M{frame.x(step) - width / 2:.1f} {bottom:.1f}h{width:.1f}V{top:.1f}h{-width:.1f}z"
                base += value
    return "".join(
        f'<path class="column c{line.colour}" d="{path}"/>' for line, path in zip(chart.lines, paths, strict=True)
    )
