"""Words around a number: which may stand in front, which are a plain noun behind, and which change its value.

Lists are closed: an unknown word in front of a number, or behind it unless it looks like a plural, leaves the number
unread. A wrong answer that is paid costs more than a right one that is not.
"""

import re

_LEADING = (
    "a actually all also amount an and answer are area average be been believe correct cost costs difference distance "
    "done equal equals exactly final finally find finds gave get gets give gives got had has have he hence here his i "
    "in is it its just leaves left length made make makes must my need needed needs now number obtain of only our pays "
    "precisely price probability product required result results she should simply so solution sold spends spent sum "
    "take takes that the their then there therefore these they think this those thus to total totals value was we were "
    "which will would you"
)
LEADING_WORDS = frozenset(_LEADING.split())
"""Words that may stand between the start of a statement and its number or box, in any order."""

SCALES = {
    **{"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12},
    **{"tausend": 3, "millionen": 6, "milliarde": 9, "milliarden": 9, "milliard": 9, "milliards": 9, "millions": 6},
    **{"百": 2, "千": 3, "万": 4, "萬": 4, "亿": 8, "億": 8},
}
"""Words that multiply the number before them: powers of ten. A dozen is none of them, and so no number here."""

_ADJECTIVE_WORDS = (
    "big black blue brown different distinct fresh full green grey large little long new old orange pink possible "
    "purple red short small tall valid white whole yellow young"
)
_ADJECTIVES = frozenset(_ADJECTIVE_WORDS.split())
_IRREGULAR = {
    **{"children": "child", "people": "person", "persons": "person", "men": "man", "women": "woman", "feet": "foot"},
    **{"mice": "mouse", "geese": "goose", "teeth": "tooth", "oxen": "ox", "dice": "die", "knives": "knife"},
    **{"leaves": "leaf", "loaves": "loaf", "shelves": "shelf", "wolves": "wolf", "wives": "wife", "lives": "life"},
    **dict.fromkeys(("fish", "sheep", "deer", "pizza", "fruit", "candy", "money", "homework", "cattle"), ""),
    **{"vertices": "vertex", "matrices": "matrix", "indices": "index", "axes": "axis", "bonuses": "bonus"},
    # German plurals without an s.
    **{"äpfel": "apfel", "birnen": "birne", "bücher": "buch", "eier": "ei", "kinder": "kind", "jungen": "junge"},
    **{"mädchen": "mädchen", "schüler": "schüler", "stifte": "stift", "seiten": "seite", "personen": "person"},
    **{"leute": "person", "menschen": "mensch", "stück": "", "bälle": "ball", "blumen": "blume", "bäume": "baum"},
    **{"katzen": "katze", "hunde": "hund", "karten": "karte", "tische": "tisch", "stühle": "stuhl"},
    **{"murmeln": "murmel", "flaschen": "flasche", "kekse": "keks", "punkte": "punkt", "häuser": "haus"},
}
"""Singular of plurals without a plain s; empty: the word is its own."""
_NO_NOUN_WORDS = (
    # Numbers, shares and multiples, also of other languages.
    "zero one two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty sixty seventy "
    "eighty ninety ones twos threes fours fives sixes sevens eights nines tens first second third half quarter "
    "dozen score gross grand couple pair brace trio lakh crore myriad mil mille million kilo mega giga tera milli "
    "micro nano hundreds dozens scores pairs couples trios lakhs crores myriads kilos megas grands grosses doubles "
    "triples quadruples double triple quadruple treble single twice thrice times multiples multiple percentages "
    "percentage percents permille promille per fold times folds halves halfs quarters docenas decenas "
    "cientos miles millones milliers centaines dizaines douzaines vingtaines demis tiers quarts tercios cuartos "
    "mitades pares veces vezes dezenas duzias dúzias dúzia milhares milhões fois dutzend paar hälfte drittel viertel "
    "zehntel mal hundert "
    # Signs, comparisons, approximations, negations.
    "negative negatives minus minuses plus pluses less least fewer more most greater lower higher above below under "
    "over moins más menos mais menor mayor plusieurs weniger mehr other another extra additional further short shy "
    "about around roughly nearly almost approx circa odd ish something some many several lots few not no none never "
    "non wrong false true right incorrect except without unless versus instead else otherwise perhaps maybe sometimes "
    "always guess yes pas nicht kein "
    # Operations and notations.
    "squared cubed factorial factorials root roots power powers inverse inverses reciprocal reciprocals opposite "
    "opposites logs exponents mod modulo base binary octal hex decimal decimals imaginary complex "
    # Verbs, pronouns and particles.
    "is was has does as this its his hers ours theirs yours whereas besides and or but nor if than then to the of in "
    "at by on off out up down left right equals exceeds means makes gives works fails needs loses seems says looks "
    "goes depends lies let us both either neither each every any all only even too just still also again"
)
_NO_NOUNS = frozenset(_NO_NOUN_WORDS.split())
_NO_NOUN_ENDINGS = re.compile(
    r".*(?:thirds|fourths|fifths|sixths|sevenths|eighths|ninths|tenths|elevenths|twelfths|teenths|tieths|hundredths"
    r"|sandths|ionths|illions?|illiards?|thousands?|wards?|ly|ish|fold|teens?|ed|times|ths|ièmes|avos)"
)
_REGULAR_PLURAL = re.compile(r"[a-zà-öø-ÿ]{2,}(?<![siu])s")
_WORD = re.compile(r"[A-Za-zÀ-ÖØ-ß]?[a-zà-öø-ÿ]{2,}|[A-Z]{4,}")

_CLOSING = (
    r"in (?:total|all|the end)|total|altogether|overall|left(?: over)?|remaining|each|exactly"
    r"|done|now|here|i (?:think|believe)"
    r"|is (?:the|my|our) (?:(?:final|correct) )?(?:answer|result|solution)"
    r"|of (?:it|them|these|those|this|that|the (?!dozen|pair|hundred|thousand|half|opposite|negative)[a-z]{3,})"
)
CLOSING_WORDS = re.compile(rf"[\s,]+(?:{_CLOSING})\s*$", re.IGNORECASE)
"""The end of a statement: words that say nothing of the value of what stands before them."""

DENIAL = re.compile(
    r"\b(?:not|no|never|neither|nor|wrong|cannot|incorrect|false|except|unlikely|doubt|untrue|hardly|unless"
    r"|(?:is|was|are|do|does|did|ca|wo|would|could|should)nt)\b|n't\b|n\N{RIGHT SINGLE QUOTATION MARK}t\b",
    re.IGNORECASE,
)
"""Words by which a line takes back what it says."""


def leads(text: str) -> bool:
    """Return whether a text holds nothing but words that may lead to an answer, and their punctuation.

    >>> leads("So the final answer is:"), leads("less than"), leads("- ")
    (True, False, False)
    """
    return re.fullmatch(r"[\w\s.,:;!*\"()]*", text) is not None and all(
        word.lower() in LEADING_WORDS for word in re.findall(r"\w+", text)
    )


def noun(text: str, *, singular: bool = False) -> str | None:
    """Return the singular of a plain noun in the plural, after an adjective of a closed list or none; else None.

    `singular`: take a noun in the singular too, as behind the number 1.

    >>> [noun(text) for text in ("apples", "red apples", "children", "thousand", "dozens", "plus", "apple")]
    ['apple', 'red apple', 'child', None, None, None, None]
    """
    adjective, _, last = text.lower().rpartition(" ")
    if not _WORD.fullmatch(text[len(text) - len(last) :]) or (adjective and adjective not in _ADJECTIVES):
        return None
    if last in _IRREGULAR:
        return f"{adjective} {_IRREGULAR[last] or last}".strip()
    if len(last) < 3 or last in _NO_NOUNS or _NO_NOUN_ENDINGS.fullmatch(last):
        return None
    if not _REGULAR_PLURAL.fullmatch(last):
        return f"{adjective} {last}".strip() if singular else None
    stem = re.sub(r"ies$", "y", last) if len(last) > 4 else last
    stem = re.sub(r"(?<=[sxz])es$|(?<=ch)es$|(?<=sh)es$|s$", "", stem)
    return f"{adjective} {stem}".strip()
