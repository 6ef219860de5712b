"""Times of day: `17:30`, `5:30 p.m.`, `6 pm`, `18h30`, `noon`. A time without a half may also be a duration."""

import re
from dataclasses import dataclass

_HALF = r"(?P<half>[aApP])\.?\s?[mM]\.?"
_OPEN, _CLOSE = r"\s*(?:\\(?:text|mathrm)\s*\{\s*)?", r"\s*\}?"
_AFTER = rf"(?:{_OPEN}(?:{_HALF}|o'clock|Uhr){_CLOSE})?"
_FORMS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?P<hour>[0-9]{1,2}):(?P<minute>[0-5][0-9])(?::(?P<second>[0-5][0-9]))?"
        rf"{_AFTER}",
        rf"(?P<hour>1[0-2]|0?[1-9]){_OPEN}{_HALF}{_CLOSE}",
        rf"(?P<hour>[0-9]{{1,2}}){_OPEN}(?:o'clock|Uhr){_CLOSE}",
        r"(?P<hour>[0-9]{1,2}) ?h(?P<minute>[0-5][0-9])",
        r"(?P<part>上午|早上|下午|晚上|午前|午後)? ?(?P<hour>[0-9]{1,2}) ?[点點时時]"
        r"(?:(?P<minute>[0-5]?[0-9]) ?分?)?整?",
    )
)
_HALVES = {"上午": "a", "早上": "a", "午前": "a", "下午": "p", "晚上": "p", "午後": "p"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Time:
    """A time with its half of the day, `a` or `p`, or empty."""

    hour: int
    minute: int
    second: int
    half: str

    @property
    def of_day(self) -> int:
        """Hour on a 24-hour clock."""
        return self.hour % 12 + 12 * (self.half == "p") if self.half else self.hour


_NAMED = {"noon": (12, "p"), "midday": (12, "p"), "12 noon": (12, "p"), "12:00 noon": (12, "p")}
_NAMED |= {"midnight": (0, ""), "12 midnight": (0, ""), "12:00 midnight": (0, "")}
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")


def parse_time(text: str) -> Time | None:
    """Read a text that is a time; None for any other text, such as a number of hours.

    >>> parse_time("6 p.m."), parse_time("6")
    (Time(hour=6, minute=0, second=0, half='p'), None)
    """
    if len(text) > 40:
        return None
    if named := _NAMED.get(_TEXT.sub(r"\1", text).strip().lower()):
        return Time(hour=named[0], minute=0, second=0, half=named[1])
    for form in _FORMS:
        if match := form.fullmatch(text):
            parts = match.groupdict()
            half = (parts.get("half") or "").lower() or _HALVES.get(parts.get("part") or "", "")
            minute, second = int(parts.get("minute") or "0"), int(parts.get("second") or "0")
            return Time(hour=int(parts["hour"]), minute=minute, second=second, half=half)
    return None


def same_time(gold: Time, answer: Time) -> bool:
    """Return whether two times are equal. A half may be missing on one side, and 5:30 p.m. is 17:30."""
    if (gold.minute, gold.second) != (answer.minute, answer.second):
        return False
    if gold.half and answer.half:
        return gold.half == answer.half and gold.hour % 12 == answer.hour % 12
    if gold.half == answer.half:
        return gold.hour == answer.hour or {gold.hour, answer.hour} == {0, 24}
    bare = answer if gold.half else gold
    if bare.hour > 12 or bare.hour == 0:
        return gold.of_day % 24 == answer.of_day % 24
    return gold.hour == answer.hour
