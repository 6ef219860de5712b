"""Answers in words: the same ones, in any case that language gives them."""

import re

_WRAPPED_TEXT = re.compile(r"\\(?:text|mathrm|textbf)\s*\{([^{}]*)\}")
_SMALL_WORDS = {
    *("a", "all", "an", "and", "any", "as", "at", "both", "by", "even", "false", "i", "if", "in", "is"),
    *("it", "no", "none", "odd", "of", "on", "or", "the", "to", "true", "yes"),
}
"""In any case these are words; other short texts may be products of variables, formulas or genotypes."""


def bare_words(text: str) -> str:
    """The words without fonts, quotation marks and what ends a sentence; an apostrophe at the end may be a prime."""
    plain = _WRAPPED_TEXT.sub(r"\1", text)
    plain = re.sub(r"\s+", " ", plain).strip(' .!"')
    return plain[1:-1] if len(plain) > 2 and plain[0] == plain[-1] == "'" else plain


def same_words(gold: str, answer: str) -> bool:
    """Return whether two texts are the same words as in a sentence: `Paris` and `paris`, not `Bb` and `BB`."""
    if gold.casefold() != answer.casefold() or len(gold) == 1:
        return gold == answer
    pairs = list(zip(gold.split(" "), answer.split(" "), strict=True))
    return all(
        one == other or other.casefold() in _SMALL_WORDS or (_is_spelled(one) and _is_spelled(other))
        for one, other in pairs
    )


def _is_spelled(word: str) -> bool:
    """Return whether the case of its letters is what language does with a word, and says nothing of its own.

    Short capitals may be a product, a formula or a genotype, and so may a short text with a letter in both cases.
    """
    letters = "".join(filter(str.isalpha, word))
    if len(letters) < 3:
        return False
    if letters.isupper():
        return len(letters) > 4
    is_name = letters[0].isupper() and letters[1:].islower()
    return letters.islower() or (is_name and (len(letters) > 3 or letters[0].lower() not in letters))
