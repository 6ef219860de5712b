r"""Units of measurement by the many ways to write them: `\text{ cm}^2`, `sq. cm` and `square centimetres` are one."""

import re

_SPELLINGS = {
    "percent": "% percent",
    "degree": "° degree degrees deg",
    "celsius": "°c",
    "fahrenheit": "°f",
    "radian": "rad radian radians",
    "dollar": "dollar dollars usd",
    "euro": "euro euros eur",
    "pound": "pounds gbp",
    "yen": "yen jpy",
    "rupee": "rupee rupees inr",
    "cent": "cent cents ¢",
    "mm": "mm millimeter millimeters millimetre millimetres",
    "cm": "cm centimeter centimeters centimetre centimetres",
    "m": "m meter meters metre metres",
    "km": "km kilometer kilometers kilometre kilometres",
    "inch": "in inch inches",
    "foot": "ft foot feet",
    "yard": "yd yard yards",
    "mile": "mi mile miles",
    "mg": "mg milligram milligrams",
    "g": "g gram grams",
    "kg": "kg kilogram kilograms",
    "ounce": "oz ounce ounces",
    "lb": "lb lbs",
    "litre": "l liter liters litre litres",
    "ml": "ml milliliter milliliters millilitre millilitres",
    "gallon": "gallon gallons",
    "second": "s sec second seconds",
    "minute": "min minute minutes",
    "hour": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "year years",
    "newton": "newton newtons",
    "joule": "joule joules",
    "watt": "watt watts",
    "unit": "unit units",
    "point": "point points",
    "person": "person persons people",
    "way": "way ways",
}
_ABBREVIATIONS = {"mph": "mile/hour", "kph": "km/hour", "kmh": "km/hour"}
_POWERS = {"square": "^2", "squared": "^2", "sq": "^2", "cubic": "^3", "cubed": "^3", "cu": "^3"}
_WRAPPER = re.compile(r"\\(?:text|mathrm|textrm|rm|mbox|textbf)\s*\{([^{}]*)\}")
_SYMBOL = re.compile(r"([^\^]+?)\s*(?:\^\s*\{?\s*([23])\s*\}?)?")
CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee"}
_UNITS = {spelling: unit for unit, spellings in _SPELLINGS.items() for spelling in spellings.split()} | CURRENCIES
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
"""Words that multiply the number before them: powers of ten. A dozen is none of them, and so no number here."""


def scaled_unit(suffix: str) -> tuple[int, str] | None:
    r"""What follows a number as (power of ten, unit): `(6, "dollar")` for ` million dollars`, `(0, "")` for nothing.

    None where it is no unit. One letter alone, straight after the digits, is a variable: `5m` is 5 times m.

    >>> scaled_unit(r"\text{ cm}^2"), scaled_unit(" miles per hour"), scaled_unit("x")
    ((0, 'cm^2'), (0, 'mile/hour'), None)
    """
    if len(suffix) == 1 and suffix.isalpha():
        return None
    text = _WRAPPER.sub(r" \1", suffix).strip()
    first, _, rest = text.partition(" ")
    power = SCALES.get(first.lower(), 0)
    unit = _unit(rest.strip() if power else text)
    return None if unit is None else (power, unit)


def same_unit(first: str, second: str) -> bool:
    """Return whether two units are one, without conversion; degrees may be those of a temperature."""
    return first == second or ("degree" in (first, second) and {first, second} <= {"degree", "celsius", "fahrenheit"})


def _unit(text: str) -> str | None:
    """Name of the unit, empty for an empty text, None for anything else."""
    if not text:
        return ""
    if len(text) > 1 or text.isupper():
        text = text.lower() if len(text) > 1 else ""
    above, divided, below = re.sub(r"\s+per\s+|\s*/\s*", "/", text).partition("/")
    if not divided:
        return _ABBREVIATIONS.get(above) or _simple_unit(above)
    over, under = _simple_unit(above), _simple_unit(below)
    return f"{over}/{under}" if over and under else None


def _simple_unit(text: str) -> str | None:
    """A unit or its square or cube."""
    words = text.replace("sq.", "sq").replace("cu.", "cu").split()
    if len(words) == 2 and words[0] in _POWERS:
        return _powered(_UNITS.get(words[1]), _POWERS[words[0]])
    if len(words) == 2 and words[1] in _POWERS:
        return _powered(_UNITS.get(words[0]), _POWERS[words[1]])
    found = _SYMBOL.fullmatch(text.replace("° ", "°"))
    return _powered(_UNITS.get(found[1]), f"^{found[2]}" if found[2] else "") if found else None


def _powered(unit: str | None, power: str) -> str | None:
    """The unit to its power; `25 square units` names no unit at all."""
    if unit is None:
        return None
    return "" if unit == "unit" else unit + power
