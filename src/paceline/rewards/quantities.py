r"""Numbers with an optional unit, read exactly: rational arithmetic, no rounding, no tolerance.

    42   -3.50   1,000   1e3   3/4   \frac{3}{4}   3 1/2   $18   18 dollars   50%   90°

A comma groups thousands only where every group has three digits, so `1,2` is not a number at all.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_DECIMAL = rf"(?P<decimal>(?:{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{{1,3}})?)"
_FRACTION = rf"(?P<above>{_DIGITS})\s*/\s*(?P<below>{_DIGITS})"
_LATEX_FRACTION = (
    rf"\\frac\s*\{{\s*(?P<inner_sign>-?)(?P<over>{_DIGITS})\s*\}}\s*\{{\s*(?P<below_sign>-?)(?P<under>{_DIGITS})\s*\}}"
)
_MIXED = (
    rf"(?P<whole>{_DIGITS})(?:\s+(?P<part>[0-9]+)/(?P<parts>[0-9]+)|\s*\\frac\{{(?P<p>[0-9]+)\}}\{{(?P<q>[0-9]+)\}})"
)
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)\s*(?P<currency>[$€£]?)\s*(?P<late_sign>-?)"
    rf"(?:{_MIXED}|{_FRACTION}|{_LATEX_FRACTION}|{_DECIMAL})\s*(?P<suffix>[^0-9]*)",
    re.DOTALL,
)

_CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound"}
_UNITS = {
    spelling: unit
    for unit, spellings in {
        "percent": "% percent",
        "degree": "° degree degrees deg",
        "dollar": "dollar dollars usd",
        "euro": "euro euros eur",
        "pound": "pounds",
        "cent": "cent cents",
        "mm": "mm millimeter millimeters millimetre millimetres",
        "cm": "cm centimeter centimeters centimetre centimetres",
        "m": "m meter meters metre metres",
        "km": "km kilometer kilometers kilometre kilometres",
        "inch": "inch inches",
        "foot": "ft foot feet",
        "yard": "yard yards",
        "mile": "mile miles",
        "g": "g gram grams",
        "kg": "kg kilogram kilograms",
        "litre": "l liter liters litre litres",
        "ml": "ml milliliter milliliters millilitre millilitres",
        "second": "s sec second seconds",
        "minute": "min minute minutes",
        "hour": "h hour hours",
        "day": "day days",
        "week": "week weeks",
        "month": "month months",
        "year": "year years",
    }.items()
    for spelling in spellings.split()
}
_UNIT_WRAPPER = re.compile(r"\\(?:text|mathrm|textrm)\s*\{([^{}]*)\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """An exact number and the unit that it was written with."""

    value: Fraction
    unit: str
    """Name of the unit, empty for a bare number."""
    divided: bool
    """Written as `a/b`: a division that may have been left undone."""


def parse_quantity(text: str) -> Quantity | None:
    """The quantity that the whole text is (spelling as `notation.normalise` gives it); None if it is not one.

    >>> parse_quantity("1,000").value, parse_quantity("1,2")
    (Fraction(1000, 1), None)
    """
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    unit = _unit(found)
    value = _magnitude(found)
    if unit is None or value is None:
        return None
    negative = (found["sign"] == "-") + bool(found["late_sign"]) + bool(found["inner_sign"]) + bool(found["below_sign"])
    divided = found["above"] is not None or found["over"] is not None
    return Quantity(value=-value if negative % 2 else value, unit=unit, divided=divided)


def same_quantity(gold: Quantity, answer: Quantity) -> bool:
    """Whether the answer is the gold quantity, exactly.

    A unit on one side only is ignored; two units must be the same (no conversion). `50%` is 0.5, and also 50 where
    the number is above 1 and the other side is bare, as in answers to "what percentage". An integer gold is not
    matched by a fraction such as 84/2: that is the question, not its answer.
    """
    if answer.divided and not gold.divided and gold.value.denominator == 1:
        return False
    if gold.unit and answer.unit:
        return gold.unit == answer.unit and gold.value == answer.value
    if "percent" in (gold.unit, answer.unit):
        share, bare = (gold, answer) if gold.unit else (answer, gold)
        return share.value / 100 == bare.value or (abs(share.value) > 1 and share.value == bare.value)
    return gold.value == answer.value


def _unit(found: re.Match[str]) -> str | None:
    """Name of the unit, empty without one, None where what follows the number is no unit that we know."""
    suffix = _UNIT_WRAPPER.sub(r"\1", found["suffix"]).strip().lower()
    named = _UNITS.get(suffix) if suffix else ""
    if not found["currency"]:
        return named
    currency = _CURRENCIES[found["currency"]]
    return currency if named in ("", currency) else None


def _magnitude(found: re.Match[str]) -> Fraction | None:
    """The number without its sign; None for a division by zero."""
    if found["decimal"] is not None:
        return Fraction(found["decimal"].replace(",", ""))
    whole = int((found["whole"] or "0").replace(",", ""))
    above = found["above"] or found["over"] or found["part"] or found["p"]
    below = int((found["below"] or found["under"] or found["parts"] or found["q"]).replace(",", ""))
    if below == 0:
        return None
    part = Fraction(int(above.replace(",", "")), below)
    if found["whole"] is not None and part >= 1:
        return None
    return whole + part
