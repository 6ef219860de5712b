"""Words around a number: which may stand in front, which end a statement, and which change its value.

Lists are closed, as that of nouns behind a number is (`nouns`): any other word leaves the number unread. A wrong answer
that is paid costs more than a right one that is not.
"""

import re
from itertools import pairwise

from paceline.data.extraction.nouns import noun

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
_WITH_OF = frozenset(
    ("amount", "answer", "area", "cost", "distance", "length", "price", "result", "solution", "total", "value")
)
"""Words whose `of 42` is 42: the sum of 42 is not."""

SCALES = {
    **{"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12},
    **{"tausend": 3, "millionen": 6, "milliarde": 9, "milliarden": 9, "milliard": 9, "milliards": 9, "millions": 6},
    **{"百": 2, "千": 3, "万": 4, "萬": 4, "亿": 8, "億": 8},
}
"""Words that multiply the number before them: powers of ten. A dozen is none of them, and so no number here."""

_CLOSING = (
    r"in (?:total|all|the end)|total|altogether|overall|left(?: over)?|remaining|each|exactly"
    r"|done|now|here|i (?:think|believe)"
    r"|is (?:the|my|our) (?:(?:final|correct) )?(?:answer|result|solution)"
    r"|of (?:it|them|these|those|this|that|(?:the|a|an) (?P<thing>[^\W\d_]+))"
)
_CLOSING_WORDS = re.compile(rf"[\s,]+(?:{_CLOSING})\s*$", re.IGNORECASE)

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
    >>> leads("the total of"), leads("the sum of"), leads("I get"), leads("i")
    (True, False, True, False)
    """
    words = re.findall(r"\w+", text.lower()) if re.fullmatch(r"[\w\s.,:;!*\"()]*", text) else [""]
    if not LEADING_WORDS.issuperset(words) or (words and len(words[-1]) == 1):
        return False  # a letter right in front of a number is a factor
    return "of" not in words or all(word in _WITH_OF for word, following in pairwise(["", *words]) if following == "of")


def without_closing(text: str) -> str:
    """Return a text without the words at its end that say nothing of the value of what stands before them.

    >>> without_closing(" apples in total"), without_closing(" of the cake"), without_closing(" of the millions")
    (' apples', '', ' of the millions')
    """
    match = _CLOSING_WORDS.search(text)
    if not match or (match["thing"] and noun(match["thing"], singular=True) is None):
        return text
    return text[: match.start()]
