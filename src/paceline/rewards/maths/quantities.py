r"""Numbers with an optional unit, read exactly: rational arithmetic, no rounding, no tolerance. Times of day.

    42   -3.50   1,000   1e3   3\times 10^{5}   2^{10}   3/4   \frac{3}{4}   3 1/2   0.\overline{3}
    $18   18 dollars   USD 18   5 million   50%   90°   12 cm^2   60 km/h   12 apples   5元   negative 42

A comma groups thousands only where every group has three digits, so `1,2` is not a number at all. A rounded number may
have a mark of approximation: `\approx 3.14`, `about 3.14`.

Times are `17:30`, `5:30 p.m.`, `6 pm`, `18h30`, `noon`. A time without a half may also be a duration.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from paceline.rewards.maths.elements import LABEL
from paceline.rewards.maths.units import CURRENCIES, currency_of, same_unit, scaled_unit

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_EXPONENT = r"\^\s*(?:\{{\s*(?P<{0}>[+-]?[0-9]{{1,3}})\s*\}}|(?P<{0}_bare>-?[0-9](?![0-9])))"
_SCIENTIFIC = rf"[eE][+-]?[0-9]{{1,3}}|\s*(?:\\times|\\cdot|[*x])\s*10\s*{_EXPONENT.format('tens')}"
_DECIMAL = rf"(?P<decimal>(?:{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+))(?P<scientific>{_SCIENTIFIC})?"
_REPEATING = r"(?P<start>[0-9]*)\.(?P<fixed>[0-9]*)\\(?:overline|bar)\s*\{?\s*(?P<repeated>[0-9]{1,30})\s*\}?"
_POWER = rf"(?P<base>[0-9]{{1,9}})\s*{_EXPONENT.format('power')}"
_FRACTION = rf"(?P<above>{_DIGITS})\s*/\s*(?P<below>{_DIGITS})"
_LATEX_FRACTION = (
    rf"\\frac\s*\{{\s*(?P<inner_sign>-?)(?P<over>{_DIGITS})\s*\}}\s*\{{\s*(?P<below_sign>-?)(?P<under>{_DIGITS})\s*\}}"
)
_MIXED = (
    rf"(?P<whole>{_DIGITS})(?:\s+(?P<part>[0-9]+)/(?P<parts>[0-9]+)|\s*\\frac\{{(?P<p>[0-9]+)\}}\{{(?P<q>[0-9]+)\}})"
)
_CURRENCY = "|".join(re.escape(mark) for mark in sorted(CURRENCIES, key=len, reverse=True))
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?|(?i:negative|minus)\s)\s*(?P<currency>(?:{_CURRENCY})?)\s*(?P<late_sign>-?)"
    rf"(?:{_MIXED}|{_FRACTION}|{_LATEX_FRACTION}|{_POWER}|{_REPEATING}|{_DECIMAL})"
    r"(?P<suffix>(?:[^0-9]|\^\s*\{?\s*-?[1-4](?![0-9]))*)",
    re.DOTALL,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """An exact number and the unit that it was written with."""

    value: Fraction
    unit: str
    """Name of the unit, empty for a bare number."""
    divided: bool
    """Written as `a/b`: a division that may have been left undone."""


def parse_quantity(text: str) -> Quantity | None:
    """Read a text that is a quantity, in the spelling of `notation.normalise`; None for any other text.

    >>> parse_quantity("1,000").value, parse_quantity("1,2")
    (Fraction(1000, 1), None)
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    value = _magnitude(match)
    # `1 apple` and `1/2 cake` are counted in the singular.
    scaled = None if value is None else scaled_unit(match["suffix"], singular=0 < value <= 1)
    if scaled is None or value is None:
        return None
    tens, behind = scaled
    unit = currency_of(match["currency"], behind) if match["currency"] else behind
    if unit is None or (unit.startswith("/") and match["suffix"].lstrip().startswith("/")):
        return None
    negative = (
        (match["sign"] not in ("", "+"))
        + bool(match["late_sign"])
        + bool(match["inner_sign"])
        + bool(match["below_sign"])
    )
    divided = match["above"] is not None or match["over"] is not None
    value *= 10**tens
    return Quantity(value=-value if negative % 2 else value, unit=unit, divided=divided)


def same_quantity(gold: Quantity, answer: Quantity) -> bool:
    """Return whether the answer is the gold quantity, exactly.

    A unit on one side only is ignored; two units must be the same (no conversion). `50%` is 0.5, and also 50 where
    the number is above 1 and the other side is bare, as in answers to "what percentage". An integer gold is not
    matched by a fraction such as 84/2: that is the question, not its answer.
    """
    if answer.divided and not gold.divided and gold.value.denominator == 1 and gold.unit != "percent":
        return False
    if gold.unit and answer.unit:
        return same_unit(gold.unit, answer.unit) and gold.value == answer.value
    if "percent" in (gold.unit, answer.unit):
        share, bare = (gold, answer) if gold.unit else (answer, gold)
        return share.value / 100 == bare.value or (abs(share.value) > 1 and share.value == bare.value)
    return gold.value == answer.value


def _magnitude(match: re.Match[str]) -> Fraction | None:
    """Return the number without its sign; None for a division by zero."""
    if match["decimal"] is not None:
        tens = match["tens"] or match["tens_bare"]
        if tens is None and match["scientific"]:
            tens = match["scientific"][1:]
        return Fraction(match["decimal"].replace(",", "")) * Fraction(10) ** int(tens or "0")
    if match["base"] is not None:
        base, power = int(match["base"]), int(match["power"] or match["power_bare"])
        return Fraction(base) ** power if base or power > 0 else None
    if match["repeated"] is not None:  # `0.1\overline{6}` is 1/6
        fixed, repeated = match["fixed"], match["repeated"]
        cycle = Fraction(int(repeated), 10 ** len(repeated) - 1)
        return Fraction(int(match["start"] or "0") + (int(fixed or "0") + cycle) / 10 ** len(fixed))
    whole = int((match["whole"] or "0").replace(",", ""))
    above = match["above"] or match["over"] or match["part"] or match["p"]
    below = int((match["below"] or match["under"] or match["parts"] or match["q"]).replace(",", ""))
    if below == 0:
        return None
    part = Fraction(int(above.replace(",", "")), below)
    if match["whole"] is not None and part >= 1:
        return None
    return whole + part


_APPROXIMATION = re.compile(
    rf"(?:(?P<name>{LABEL} ?)?(?:\\(?:approx|sim|simeq|cong|thickapprox)(?![a-zA-Z])|=? ?\\approx(?![a-zA-Z]))"
    r"|(?:\\text\s*\{\s*)?(?:about|approximately|approx\.?|around|roughly|circa|ca\.|etwa|ungefähr|rund|environ|约|大约|約|およそ)"
    r"(?![a-zA-Z])(?:\s*\})?)\s*(?=[^\s=])"
)
"""A mark of approximation, behind the name of the value or alone."""
_NAMED_VALUE = re.compile(rf"^{LABEL} ?= ?")


def approximated(text: str) -> tuple[str, bool]:
    r"""Remove the mark of approximation of a number, behind its name or alone; and return True if it had one."""
    match = _APPROXIMATION.match(text)
    if not match or not parse_quantity(text[match.end() :]):
        return text, False
    name = f"{match['name']}= " if match["name"] else ""
    return f"{name}{text[match.end() :]}", True


def is_decimal(text: str) -> bool:
    """Return whether a text is a number that is written with a point, and so may have been rounded."""
    number = _NAMED_VALUE.sub("", text)
    return "." in number and parse_quantity(number) is not None


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
