"""The final answer of a text, in any of the styles that mark it."""

import re

from paceline.data.extraction.boxes import last_boxed, unboxed
from paceline.data.extraction.hashes import last_hashes
from paceline.data.extraction.tags import last_answer_tag


def final_answer(text: str, *, plain: bool = False) -> str | None:
    r"""Return the answer of a visible text: last `<answer>`, else last `\boxed{}`, else the text after the last `####`.

    `plain`: else what the last line states (`plain_answer`).
    """
    for find in (last_answer_tag, last_boxed, last_hashes, *((plain_answer,) if plain else ())):
        answer = find(text)
        if answer is not None:
            return unboxed(answer)
    return None


_LEAD_IN = re.compile(r"\banswer(?:\s+is\b|\s*[:=])|[=≈]", re.IGNORECASE)
_EMPHASIS = re.compile(r"\*\*|__")
_NUMBER = re.compile(
    r"(?<![\w^.,/+*-])[-\N{MINUS SIGN}]?[$€£]?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?(?:/[0-9]+)?%?(?![\w^/+*])"
)
_DENIAL = re.compile(
    r"\b(?:not|no|never|neither|nor|wrong|cannot)\b|n't\b|n\N{RIGHT SINGLE QUOTATION MARK}t\b", re.IGNORECASE
)
_DIGITS = re.compile("[0-9]+")
_WORDS = re.compile(r"[\w\s.,;:!?'\"()$€£%/\N{MINUS SIGN}-]*")


def plain_answer(text: str) -> str | None:
    """Return the answer that the last line states; None for an empty text.

    It is the text after the line's last `answer is`, `answer:` or `=`. If words stand around exactly one number there,
    and none of them denies it, it is that number. Several numbers are no answer: `41 or 42` stays as it is and equals
    nothing. What stands before the `=` is not looked at: a wrong sum with the right result is right.

    >>> [plain_answer(line) for line in ("The answer is 42.", "So 6 * 7 = 42 apples", "It is 41 or 42", "It is not 42")]
    ['42', '42', 'It is 41 or 42', 'It is not 42']
    """
    lines = text.strip().splitlines()
    if not lines:
        return None
    line = _EMPHASIS.sub("", lines[-1]).strip()
    *_, end = (0, *(match.end() for match in _LEAD_IN.finditer(line)))
    rest = line[end:].strip() or line
    numbers = _NUMBER.findall(rest) if _WORDS.fullmatch(rest) else []
    is_alone = len(numbers) == 1 and _DIGITS.findall(rest) == _DIGITS.findall(numbers[0]) and not _DENIAL.search(line)
    return numbers[0] if is_alone else rest
