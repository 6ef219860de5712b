"""Bars, small curves and numbers as text of a given width."""

from collections.abc import Sequence

LEVELS = "▁▂▃▄▅▆▇█"
ASCII_LEVELS = "_.-=+*#@"
MINUTE, HOUR = 60, 3600
GIB = 1 << 30


def bar(share: float, width: int, *, ascii_only: bool) -> tuple[str, str]:
    """The part of a bar that is done and the part that is not, together `width` characters.

    >>> bar(0.5, 5, ascii_only=False)
    ('━━╸', '━━')
    """
    halves = round(2 * width * min(max(share, 0.0), 1.0))
    whole, half = divmod(halves, 2)
    line, end = ("#", "-") if ascii_only else ("━", "╸")
    done = line * whole + end * half
    return done, (" " if ascii_only else "━") * (width - whole - half)


def curve(values: Sequence[float], *, ascii_only: bool) -> str:
    """One character per value, from the lowest of them to the highest; a flat line where all are equal.

    >>> curve([0.0, 1.0, 7.0], ascii_only=False)
    '▁▂█'
    """
    if not values:
        return ""
    levels = ASCII_LEVELS if ascii_only else LEVELS
    low, high = min(values), max(values)
    top = len(levels) - 1
    return "".join(levels[round(top * (value - low) / (high - low)) if high > low else 0] for value in values)


def binned(values: Sequence[float], most: int) -> tuple[float, ...]:
    """Reduce values to means of neighbours, each of equally many but the last.

    >>> binned([1, 3, 5, 7, 9], most=3)
    (2.0, 6.0, 9.0)
    """
    size = -(-len(values) // most) or 1
    parts = (values[start : start + size] for start in range(0, len(values), size))
    return tuple(sum(part) / len(part) for part in parts)


def duration(seconds: float) -> str:
    """In the two largest units.

    >>> [duration(seconds) for seconds in (7.6, 72, 7500)]
    ['8 s', '1 min 12 s', '2 h 05 min']
    """
    whole = round(seconds)
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE:02} s"
    return f"{whole // HOUR} h {whole % HOUR // MINUTE:02} min"


def fitting(parts: Sequence[str], width: int) -> str:
    """As many of the parts, from the first on, as fit; a comma between them.

    >>> fitting(["131 of 256", "21,300 tokens/s", "2 s to go"], 30)
    '131 of 256, 21,300 tokens/s'
    """
    text = ""
    for part in parts:
        longer = f"{text}, {part}" if text else part
        if len(longer) > width:
            break
        text = longer
    return text
