"""Numbers as people read them: three figures, thousands separators, units."""

from paceline.metrics.statistics import Interval


def short(value: float) -> str:
    """About three significant figures.

    >>> [short(x) for x in (0.0, 0.25164, 12.0, 412_345, 1_234_567, 3.1e-7)]
    ['0', '0.252', '12', '412,345', '1.23 M', '3.1e-7']
    """
    size = abs(value)
    if size >= 1e6:
        power, suffix = next((p, s) for p, s in ((1e12, "T"), (1e9, "G"), (1e6, "M")) if size >= p)
        return f"{value / power:.3g} {suffix}"
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    if size >= 1e-3:
        return f"{value:.3g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def percent(share: float) -> str:
    """A share of one as a percentage with one decimal.

    >>> percent(0.252)
    '25.2 %'
    """
    return f"{100 * share:.1f} %"


def points(share: float) -> str:
    """A difference of two shares, signed, in percentage points without the unit.

    >>> points(0.716), points(-0.02)
    ('+71.6', '-2.0')
    """
    return f"{100 * share:+.1f}"


def percent_interval(interval: Interval) -> str:
    """Format an accuracy with its interval.

    >>> percent_interval(Interval(value=0.252, low=0.219, high=0.288))
    '25.2 % [21.9, 28.8]'
    """
    return f"{100 * interval.value:.1f} % [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def points_interval(interval: Interval) -> str:
    """Format a difference of accuracies with its interval.

    >>> points_interval(Interval(value=0.71, low=0.67, high=0.75))
    '+71.0 points [+67.0, +75.0]'
    """
    return f"{100 * interval.value:+.1f} points [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"


def gibibytes(size: float, decimals: int = 2) -> str:
    """Bytes in GiB.

    >>> gibibytes(3 << 29)
    '1.50 GiB'
    """
    return f"{size / 2**30:.{decimals}f} GiB"


def duration(seconds: float, decimals: int = 1) -> str:
    """Seconds in the two largest fitting units; `decimals` are those of seconds below a minute.

    >>> [duration(x) for x in (0.42, 59.96, 192, 3840)]
    ['0.4 s', '1 min 00 s', '3 min 12 s', '1 h 04 min']
    """
    if round(seconds, decimals) < 60:
        return f"{seconds:.{decimals}f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def count(number: float, singular: str, plural: str | None = None) -> str:
    """A number with its noun: `1 step`, `1,200 steps`."""
    return f"{number:,.0f} {singular if number == 1 else plural or singular + 's'}"


def sample_size(graded: int, tasks: int) -> str:
    """Format the number of graded tasks, and of those that could not be graded.

    >>> sample_size(8, 8), sample_size(5, 8)
    ('n = 8', 'n = 5 of 8, 3 failed')
    """
    return f"n = {graded}" if graded == tasks else f"n = {graded} of {tasks}, {tasks - graded} failed"
