r"""Units behind a number: measures, currencies, counted things, in several languages.

Words are read in any case. Abbreviations keep theirs, as `Mg` is not `mg`. Nothing is converted.
"""

import re

from paceline.data.wording import SCALES, noun, without_closing

_ABBREVIATIONS = (
    "percent: % pct, degree: ° deg deg., celsius: °C °c, fahrenheit: °F °f, radian: rad, dollar: USD usd, "
    "euro: EUR eur, pound: GBP gbp, yen: JPY jpy, rupee: INR inr Rs Rs., yuan: CNY RMB rmb cny, franc: CHF, "
    "australian-dollar: AUD, canadian-dollar: CAD, cent: ¢, mm: mm, cm: cm CM, dm: dm, m: m, km: km Km KM, "
    "inch: in in., foot: ft ft. FT, yard: yd yd., mile: mi, mg: mg, g: g, kg: kg Kg KG, ounce: oz oz. OZ, "
    "pound-weight: lb lbs LB LBS, litre: l L, ml: ml mL, cl: cl cL, dl: dl dL, gallon: gal, second: s sec sec., "
    "minute: min min., hour: h hr hrs hr. hrs. HR HRS, year: yr yrs, newton: N, joule: J, watt: W, kilojoule: kJ, "
    "kilowatt: kW, kilowatt-hour: kWh, volt: V, hertz: Hz, pascal: Pa, mole: mol, hectare: ha"
)
_WORDS = (
    "percent: percent prozent pourcent, degree: degree degrees grad degré degrés grado grados, "
    "celsius: celsius, fahrenheit: fahrenheit, radian: radian radians, "
    "dollar: dollar dollars buck bucks, euro: euro euros, pound: pounds, yen: yen, rupee: rupee rupees, yuan: yuan, "
    "cent: cent cents, franc: franc francs, won: won, rouble: ruble rubles rouble roubles, "
    "mm: millimeter millimeters millimetre millimetres millimètre millimètres, "
    "cm: centimeter centimeters centimetre centimetres zentimeter centimètre centimètres centímetro centímetros, "
    "m: meter meters metre metres mètre mètres metro metros, "
    "km: kilometer kilometers kilometre kilometres kilomètre kilomètres kilómetro kilómetros, "
    "inch: inch inches, foot: foot feet, yard: yard yards, mile: mile miles, "
    "mg: milligram milligrams milligramm milligramme milligrammes, g: gram grams gramm gramme grammes gramos, "
    "kg: kilogram kilograms kilogramm kilogramme kilogrammes, tonne: ton tons tonne tonnes tonnen, "
    "ounce: ounce ounces, pound-weight: pfund, litre: liter liters litre litres litro litros, "
    "ml: milliliter milliliters millilitre millilitres, gallon: gallon gallons, "
    "second: second seconds sekunde sekunden seconde secondes segundos, minute: minute minutes minuten minutos, "
    "hour: hour hours stunde stunden heure heures hora horas, day: day days tag tage tagen jour jours día días, "
    "week: week weeks woche wochen semaine semaines semanas, month: month months monat monate monaten mois mes meses, "
    "year: year years jahr jahre jahren an ans année années año años, newton: newton newtons, joule: joule joules, "
    "watt: watt watts, volt: volt volts, unit: unit units einheit einheiten unité unités, point: point points, "
    "way: way ways"
)
_COMPOUNDS = {
    **{"mph": "mile/hour", "kph": "km/hour", "kmh": "km/hour", "kmph": "km/hour", "quadratmeter": "m^2"},
    **{"quadratzentimeter": "cm^2", "quadratkilometer": "km^2", "kubikmeter": "m^3", "kubikzentimeter": "cm^3"},
}
_IDEOGRAPHIC = (
    "yuan: 元 圆 块 块钱 元钱 人民币, dollar: 美元 ドル, euro: 欧元 歐元 ユーロ, yen: 日元 円, "
    "mm: 毫米 ミリメートル, cm: 厘米 公分 センチ センチメートル, dm: 分米, m: 米 公尺 メートル, "
    "km: 千米 公里 キロメートル, mg: 毫克, g: 克 グラム, kg: 公斤 千克 キログラム, tonne: 吨 トン, "
    "litre: 升 リットル, ml: 毫升 ミリリットル, degree: 度, page: 页 頁, m^2: 平方米 平方メートル, "
    "cm^2: 平方厘米 平方センチメートル, km^2: 平方千米 平方公里, m^3: 立方米 立方メートル, cm^3: 立方厘米, "
    "hectare: 公顷, hour: 小时 小時 個小時 个小时 時間, minute: 分钟 分鐘 分間, second: 秒 秒钟 秒鐘 秒間, "
    "day: 天 日 日間, week: 周 星期 个星期 週間, month: 月 个月 個月 か月 ヶ月 カ月, year: 年 岁 歳 歲 年間, "
    "person: 人 名 位, : 个 個 つ, 分: 分, 角: 角, percent: パーセント, km/hour: 千米/时 千米/小时, m/second: 米/秒"
)
_COUNTERS = "个個只隻本张張条條件辆輛棵朵块位名匹头頭台枚支枝根颗顆粒套间所家座艘架份题題道次回冊册杯瓶袋箱盒碗盘桶人"
"""Counters, alone or before the counted thing. Those that double or multiply are not here: 双, 对, 打, 倍, 成."""
_COUNTED = re.compile(
    rf"(?P<counter>[{_COUNTERS}])"
    r"(?P<thing>(?:(?![万千百亿億萬十零一二三四五六七八九两半非不没无否或和与及负正倍多余几约近超以外内上下左右来成折分之第每"
    r"比少大小平方立兆双对打套月年元])[\u4e00-\u9fff]){0,4})"
)
_POWERS = {"square": "2", "squared": "2", "sq": "2", "sq.": "2", "cubic": "3", "cubed": "3", "cu": "3", "cu.": "3"}
_POWERS |= {"carré": "2", "carrés": "2", "cuadrados": "2", "quadrat": "2"}
_WRAPPER = re.compile(r"\\(?:text|mathrm|textrm|rm|mbox|textbf|textit|operatorname)\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_FRACTION = re.compile(r"\\frac\s*\{((?:[^{}]|\{[^{}]*\})+)\}\s*\{((?:[^{}]|\{[^{}]*\})+)\}")
_PER = re.compile(r"\s+(?:per|an?|each|every|pro|par)\s+|\s*/\s*")
_FACTOR = re.compile(r"([^\^\s]+?)(?:\^(?:\{(-?[1-4])\}|(-?[1-4])))?")
_PER_CENT = re.compile(r"\b(?:per|pour|por) cent(?:o)?\b", re.IGNORECASE)


def _table(rows: str) -> dict[str, str]:
    return {spelling: row.partition(":")[0] for row in rows.split(", ") for spelling in row.partition(":")[2].split()}


_CURRENCY_SIGNS = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee", "₩": "won", "₽": "rouble"}
_BY_ABBREVIATION = _table(_ABBREVIATIONS) | _CURRENCY_SIGNS
_BY_WORD = _table(_WORDS) | _COMPOUNDS
_BY_CHARACTERS = _table(_IDEOGRAPHIC)
_CURRENCY_PREFIXES = (
    "dollar: US$ USD, australian-dollar: A$ AU$ AUD, canadian-dollar: C$ CA$ CAD, hongkong-dollar: HK$, "
    "newzealand-dollar: NZ$, singapore-dollar: S$, real: R$, euro: EUR, pound: GBP, yen: JPY, rupee: INR Rs. Rs, "
    "yuan: CNY RMB, franc: CHF, won: KRW, rouble: RUB"
)
CURRENCIES = _table(_CURRENCY_PREFIXES) | _CURRENCY_SIGNS | {"US $": "dollar"}
"""Currency of each text that may stand before a number."""
MAX_UNIT = 120  # Characters; nothing longer is read as a unit


def scaled_unit(suffix: str, *, singular: bool = False) -> tuple[int, str] | None:
    r"""Read the text behind a number as (power of ten, unit): `(6, "dollar")` for ` million dollars`.

    The empty text is `(0, "")`, and a text that is no unit None. One letter alone, straight after the digits, is a
    variable: `5m` is 5 times m.
    `singular`: a counted thing may stand in the singular.

    >>> scaled_unit(r"\text{ cm}^2"), scaled_unit(" miles per hour"), scaled_unit(" red apples"), scaled_unit("x")
    ((0, 'cm^2'), (0, 'mile/hour'), (0, 'red apple'), None)
    """
    if len(suffix) > MAX_UNIT or (len(suffix) == 1 and suffix.isascii() and suffix.isalpha()):
        return None
    text = _FRACTION.sub(r" \1/\2", _WRAPPER.sub(r" \1", suffix))
    text = _PER_CENT.sub("percent", re.sub(r"\s+", " ", without_closing(text))).strip()
    tens = 0
    while scale := _leading_scale(text):
        text, tens = text[len(scale) :].strip(), tens + SCALES[scale.lower()]
    unit = _unit(text, singular=singular and not tens)
    return None if unit is None else (tens, unit)


def same_unit(first: str, second: str) -> bool:
    """Return whether two units are equal, without conversion; degrees may be of a temperature.

    An adjective may be left out on one side: `red apple` and `apple`. A pound may be of money or of weight.
    """
    if first == second or {first, second} == {"pound", "pound-weight"}:
        return True
    if "degree" in (first, second):
        return {first, second} <= {"degree", "celsius", "fahrenheit"}
    return first.endswith(f" {second}") or second.endswith(f" {first}")


def currency_of(mark: str, unit: str) -> str | None:
    """Return the unit of an amount with a currency before it and this unit behind it; None where they differ."""
    currency = CURRENCIES[mark.strip()]
    if unit in ("", currency):
        return currency
    return f"{currency}{unit}" if unit.startswith("/") else None


def _leading_scale(text: str) -> str:
    """Return the scale at the start of a unit: a word, or a Chinese character that is not part of a unit (`千米`)."""
    word = text.partition(" ")[0]
    if word.lower() in SCALES:
        return word
    return text[0] if text[:1] in SCALES and text not in _BY_CHARACTERS else ""


def _unit(text: str, *, singular: bool) -> str | None:
    """Return the name of a unit, empty for an empty text, None for anything else."""
    if text in _BY_CHARACTERS:
        return _BY_CHARACTERS[text]
    if counted := _COUNTED.fullmatch(text):
        return counted["thing"] or counted["counter"]
    if text.lower() in ("degrees celsius", "degrees fahrenheit", "degree celsius", "degree fahrenheit"):
        return text.lower().split()[1]
    powers = dict[str, int]()
    parts = _PER.split(f" {text}" if text.startswith(("per ", "a ", "an ")) else text)
    if len(parts) > 3:
        return None
    for index, part in enumerate(parts):
        factors = _factors(part.strip(), singular=singular or index > 0)
        if factors is None or (index > 0 and not part.strip()):
            return None
        for name, power in factors.items():
            powers[name] = powers.get(name, 0) + (-power if index else power)
    return _spelled(powers)


def _factors(text: str, *, singular: bool) -> dict[str, int] | None:
    """Return the units of a product with their powers; None if a unit is unknown."""
    if not text:
        return {}
    words = text.replace("° ", "°").replace(r"\cdot", " ").replace("*", " ").split()
    if len(words) == 2:
        for word, other in (words, words[::-1]):
            if word.lower() in _POWERS and (unit := _named(other)):
                return {} if unit == "unit" else {unit: int(_POWERS[word.lower()])}
    powers = dict[str, int]()
    for word in words:
        factor = _FACTOR.fullmatch(word)
        unit = _named(factor[1]) if factor else None
        if factor is None or unit is None:
            thing = noun(text, singular=singular)
            return None if thing is None else {thing: 1}
        powers[unit] = powers.get(unit, 0) + int(factor[2] or factor[3] or "1")
    return {} if powers.keys() == {"unit"} else powers


def _named(word: str) -> str | None:
    return _BY_ABBREVIATION.get(word) or _BY_WORD.get(word.lower())


def _spelled(powers: dict[str, int]) -> str:
    """Format a product of units in one spelling: `kg*m/second^2`."""
    above, below = list[str](), list[str]()
    for name, power in sorted(powers.items()):
        plain, divided, under = name.partition("/")  # a compound: `mile/hour`
        names = [(plain, power), (under, -power)] if divided else [(name, power)]
        for single, exponent in names:
            if exponent:
                (above if exponent > 0 else below).append(single + (f"^{abs(exponent)}" if abs(exponent) > 1 else ""))
    return "*".join(above) + "".join(f"/{name}" for name in below)
