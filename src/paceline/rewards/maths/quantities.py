r"""Numbers with an optional unit, read exactly: rational arithmetic, no rounding, no tolerance.

    42   -3.50   1,000   1e3   3\times 10^{5}   2^{10}   3/4   \frac{3}{4}   3 1/2   0.\overline{3}
    $18   18 dollars   5 million   50%   90°   12 cm^2   60 km/h

A comma groups thousands only where every group has three digits, so `1,2` is not a number at all.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

# Name of each unit, with its spellings.
_SPELLINGS = (
    "percent: % percent, degree: ° degree degrees deg, celsius: °c, fahrenheit: °f, radian: rad radian radians, "
    "dollar: dollar dollars usd, euro: euro euros eur, pound: pounds gbp, yen: yen jpy, rupee: rupee rupees inr, "
    "cent: cent cents ¢, mm: mm millimeter millimeters millimetre millimetres, "
    "cm: cm centimeter centimeters centimetre centimetres, m: m meter meters metre metres, "
    "km: km kilometer kilometers kilometre kilometres, inch: in inch inches, foot: ft foot feet, "
    "yard: yd yard yards, mile: mi mile miles, mg: mg milligram milligrams, g: g gram grams, "
    "kg: kg kilogram kilograms, ounce: oz ounce ounces, lb: lb lbs, litre: l liter liters litre litres, "
    "ml: ml milliliter milliliters millilitre millilitres, gallon: gallon gallons, second: s sec second seconds, "
    "minute: min minute minutes, hour: h hr hrs hour hours, day: day days, week: week weeks, month: month months, "
    "year: year years, newton: newton newtons, joule: joule joules, watt: watt watts, unit: unit units, "
    "point: point points, person: person persons people, way: way ways"
)
_ABBREVIATIONS = {"mph": "mile/hour", "kph": "km/hour", "kmh": "km/hour"}
_POWERS = {"square": "^2", "squared": "^2", "sq": "^2", "cubic": "^3", "cubed": "^3", "cu": "^3"}
_WRAPPER = re.compile(r"\\(?:text|mathrm|textrm|rm|mbox|textbf)\s*\{([^{}]*)\}")
_SYMBOL = re.compile(r"([^\^]+?)\s*(?:\^\s*\{?\s*([23])\s*\}?)?")
CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee"}
_UNITS = {
    spelling: row.partition(":")[0] for row in _SPELLINGS.split(", ") for spelling in row.partition(":")[2].split()
} | CURRENCIES
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
    unit = _named_unit(rest.strip() if power else text)
    return None if unit is None else (power, unit)


def same_unit(first: str, second: str) -> bool:
    """Return whether two units are one, without conversion; degrees may be those of a temperature."""
    return first == second or ("degree" in (first, second) and {first, second} <= {"degree", "celsius", "fahrenheit"})


def _named_unit(text: str) -> str | None:
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
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)\s*(?P<currency>[{''.join(CURRENCIES)}]?)\s*(?P<late_sign>-?)"
    rf"(?:{_MIXED}|{_FRACTION}|{_LATEX_FRACTION}|{_POWER}|{_REPEATING}|{_DECIMAL})"
    r"(?P<suffix>[^0-9]*(?:\^\s*\{?\s*[23]\s*\}?)?(?:/[^0-9]*)?)",
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
    """The quantity that the whole text is (spelling as `notation.normalise` gives it); None if it is not one.

    >>> parse_quantity("1,000").value, parse_quantity("1,2")
    (Fraction(1000, 1), None)
    """
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    scaled, value = scaled_unit(found["suffix"]), _magnitude(found)
    if scaled is None or value is None:
        return None
    tens, unit = scaled
    if found["currency"]:
        currency = CURRENCIES[found["currency"]]
        if unit not in ("", currency):
            return None
        unit = currency
    negative = (found["sign"] == "-") + bool(found["late_sign"]) + bool(found["inner_sign"]) + bool(found["below_sign"])
    divided = found["above"] is not None or found["over"] is not None
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


def _magnitude(found: re.Match[str]) -> Fraction | None:
    """The number without its sign; None for a division by zero."""
    if found["decimal"] is not None:
        tens = found["tens"] or found["tens_bare"]
        if tens is None and found["scientific"]:
            tens = found["scientific"][1:]
        return Fraction(found["decimal"].replace(",", "")) * Fraction(10) ** int(tens or "0")
    if found["base"] is not None:
        base, power = int(found["base"]), int(found["power"] or found["power_bare"])
        return Fraction(base) ** power if base or power > 0 else None
    if found["repeated"] is not None:  # `0.1\overline{6}` is 1/6
        fixed, repeated = found["fixed"], found["repeated"]
        cycle = Fraction(int(repeated), 10 ** len(repeated) - 1)
        return Fraction(int(found["start"] or "0") + (int(fixed or "0") + cycle) / 10 ** len(fixed))
    whole = int((found["whole"] or "0").replace(",", ""))
    above = found["above"] or found["over"] or found["part"] or found["p"]
    below = int((found["below"] or found["under"] or found["parts"] or found["q"]).replace(",", ""))
    if below == 0:
        return None
    part = Fraction(int(above.replace(",", "")), below)
    if found["whole"] is not None and part >= 1:
        return None
    return whole + part
