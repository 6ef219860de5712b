r"""Comparison of two expressions or texts that are no number, choice, time or collection: as words, or by a proof.

A calculation that was left undone is not an answer: it would let a model answer "what is 17 + 25?" with the question.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from paceline.rewards.maths.symbolic import is_bounded
from paceline.rewards.maths.units import same_unit, scaled_unit

Prove = Callable[[str, str], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class EqualityVerdict:
    """Result of a comparison, with the rule that decided it."""

    equal: bool
    rule: str
    """A row of the table in `verdicts`, or `timeout`: the proof took too long, and the answer counts as different."""


RELATION = re.compile(r"=|\\in(?![a-zA-Z])")
NOT_MATHS = re.compile(
    r"[0-9]\s+[0-9]|[0-9)]\s*_|[0-9]\.[0-9]*\.|:|\$"
    r"|\.\.\.|\\(?:quad|qquad|[lc]?dots|f?boxed|approx|equiv|sim|simeq|cong|to|[hv]?phantom|color|textcolor|[A-Za-z]*arrow|[(\[)\]])"
)
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{[a-z]+\*?\}|\\[a-zA-Z]+")
_WORD = re.compile(r"[a-zA-Z]{4,}|(?<![a-zA-Z])(?:or|and|not|is|no|yes|the|if|all|any)(?![a-zA-Z])|[^\x00-\x7f°]")
_CONSTANT = re.compile(r"\+ ?[cC]$")
_PRODUCT = re.compile(r"[a-zA-Z]{1,3}")  # Beside an expression these letters are one too
_LETTERS = re.compile(r"(?=.*[a-zA-Z]{2})(?!.* - )[a-zA-Z][a-zA-Z' -]+")
_TEXT_UNIT = re.compile(r"(.+?)(\\(?:text|mathrm|mbox)\s*\{[^{}]*\}(?:\s*\^\s*\{?\s*[23]\s*\}?)?)")


def compare_expressions(gold: str, answer: str, prove: Prove, *, gold_is_number: bool) -> EqualityVerdict:
    """Compare as words where one of the texts is language, else by `prove`.

    `xy` beside `x*y` is a product; beside `yx` it is a word.
    """
    language = [text for text in (gold, answer) if is_words(text)]
    if len(language) == 2 or any(not _PRODUCT.fullmatch(text) for text in language):
        return EqualityVerdict(equal=same_words(bare_words(gold), bare_words(answer)), rule="words")
    if NOT_MATHS.search(gold) or NOT_MATHS.search(answer):
        same = bare(gold) == bare(answer) and not re.search(r"[0-9] [0-9]", gold + answer)
        return EqualityVerdict(equal=same, rule="words")
    (gold, unit), (answer, answer_unit) = _without_unit(gold), _without_unit(answer)
    in_gold, in_answer = len(RELATION.findall(gold)), len(RELATION.findall(answer))
    have_other_units = unit and answer_unit and not same_unit(unit, answer_unit)
    have_other_marks = gold.count("'") != answer.count("'") or in_gold != in_answer or in_gold > 1
    if have_other_units or have_other_marks or _differ_in_case(gold, answer):
        return EqualityVerdict(equal=False, rule="symbolic")
    if _is_unfinished(gold, answer, gold_is_number=gold_is_number):
        return EqualityVerdict(equal=False, rule="unfinished")
    bounded = is_bounded(gold) and is_bounded(answer)
    return EqualityVerdict(equal=bounded and prove(gold, answer), rule="symbolic")


def _without_unit(text: str) -> tuple[str, str]:
    r"""Split off the unit behind an expression: `12\pi \text{ cm}^2`. A unit outside `\text` may be a variable."""
    match = _TEXT_UNIT.fullmatch(text)
    scaled = scaled_unit(match[2]) if match else None
    return (match[1].strip(), scaled[1]) if match and scaled and not scaled[0] else (text, "")


def _differ_in_case(gold: str, answer: str) -> bool:
    """Return whether a letter that both texts use is a capital in one of them only: the algebra takes `A` for `a`.

    The constant of an integral, `+ C` at the end, may be written either way.
    """
    used = [set(re.findall("[a-zA-Z]", _ENVIRONMENT.sub(" ", _CONSTANT.sub("", text)))) for text in (gold, answer)]
    shared = {letter.lower() for letter in used[0]} & {letter.lower() for letter in used[1]}
    return any({letter, letter.upper()} & used[0] != {letter, letter.upper()} & used[1] for letter in shared)


def is_words(text: str) -> bool:
    """Return whether the text is language: as algebra, `no` would be n times o, the same as `on`."""
    plain = _ENVIRONMENT.sub(" ", _without_unit(text)[0])
    return _WORD.search(plain) is not None or _LETTERS.fullmatch(text) is not None or text.isalpha()


def bare(text: str) -> str:
    """Remove spaces, and braces around a base: `101_{2}` becomes `101_2`."""
    return re.sub(r"_\{([0-9]+)\}", r"_\1", text.replace(" ", ""))


# Words
_WRAPPED_TEXT = re.compile(r"\\(?:text|mathrm|textbf)\s*\{([^{}]*)\}")
_SMALL_WORDS = {
    *("a", "all", "an", "and", "any", "as", "at", "both", "by", "even", "false", "i", "if", "in", "is"),
    *("it", "no", "none", "odd", "of", "on", "or", "the", "to", "true", "yes"),
}
"""Words regardless of case; other short texts may be products of variables, formulas or genotypes."""


def bare_words(text: str) -> str:
    """Remove fonts, quotation marks and the end of a sentence; an apostrophe at the end may be a prime and stays."""
    plain = _WRAPPED_TEXT.sub(r"\1", text)
    plain = re.sub(r"\s+", " ", plain).strip(' .!"')
    return plain[1:-1] if len(plain) > 2 and plain[0] == plain[-1] == "'" else plain


def same_words(gold: str, answer: str) -> bool:
    """Return whether two texts are the same words as in a sentence: `Paris` and `paris`, not `Bb` and `BB`."""
    if gold.casefold() != answer.casefold() or len(gold) == 1:
        return gold == answer
    pairs = list(zip(gold.split(" "), answer.split(" "), strict=True))
    return all(
        word == other or other.casefold() in _SMALL_WORDS or (_is_spelled(word) and _is_spelled(other))
        for word, other in pairs
    )


def _is_spelled(word: str) -> bool:
    """Return whether the case of the letters follows the rules of language, and so carries no meaning.

    Short capitals may be a product, a formula or a genotype, and so may a short text with a letter in both cases.
    """
    letters = "".join(filter(str.isalpha, word))
    if len(letters) < 3:
        return False
    if letters.isupper():
        return len(letters) > 4
    is_name = letters[0].isupper() and letters[1:].islower()
    return letters.islower() or (is_name and (len(letters) > 3 or letters[0].lower() not in letters))


# Calculations and sets that were left undone
_POWER_OF_TEN = re.compile(r"(?<=[0-9]) ?\\(?:times|cdot) ?(?=10 ?\^)")
_NUMERAL = re.compile(r"[0-9.]+")
_INDEX = re.compile(r"(?<=\\sqrt)\[[^\[\]]*\]|(?<=\\log)_(?:\{[0-9.]+\}|[0-9.])")
"""Index of a root, base of a logarithm."""
_STEPS = (
    (re.compile(r"[({\[]-?N[)}\]]"), "N"),
    (re.compile(r"[({\[]-?N?R+[)}\]]"), "R"),
    (re.compile(r"([NR])\^-?[NR]"), r"\1"),
    (re.compile(r"\\fracNN"), "N"),
    (re.compile(r"\\frac(?:NR|RN|RR)"), "R"),
    (re.compile(r"\\(?:sqrt|ln|log)[NR]"), "R"),
)
"""Replacement of each part that is one constant: N if it has numbers alone, R with a root or a logarithm."""
_CONSTANT_TERM = re.compile(r"-?(?:N|N?R+)")
"""A number, or a number times roots and logarithms; two adjacent numbers are an undone product."""
_DIFFERENTIAL = r"(?:d|\\partial(?![a-zA-Z])|\\mathrm ?\{ ?d ?\})"
_OPERATION = re.compile(
    r"\\(?:sum|prod|int|iint|oint|lim|limsup|liminf|max|min|gcd|lcm)(?![a-zA-Z])"
    rf"|\\frac ?\{{ ?{_DIFFERENTIAL}[^{{}}]*\}} ?\{{ ?{_DIFFERENTIAL} ?[a-zA-Z]"
)
"""A sum, a product, an integral, a limit, the largest of several, a derivative."""
_SET_OPERATION = re.compile(r"\\(?:cup|cap|setminus)(?![a-zA-Z])")


def _is_unfinished(gold: str, answer: str, *, gold_is_number: bool) -> bool:
    """Return whether the answer is a calculation that was left undone.

    Where gold is a plain number, the answer may be a constant, such as a root or a power. A sum, product, integral,
    limit, derivative or several matrices are only right where gold is written with them too.
    """
    if _OPERATION.search(answer) and not _OPERATION.search(gold):
        return True
    if answer.count(r"\begin") > gold.count(r"\begin"):
        return True
    if not gold_is_number:
        return False
    if r"\frac" in answer and re.fullmatch(r"-?[0-9,]+", gold) is not None:
        return True
    # A number, root, power or logarithm, or a multiple of one, is a constant: `3\sqrt{2}`, not `6(7)`.
    text = _POWER_OF_TEN.sub("", answer).replace("^{-", "^{")
    text, before = _NUMERAL.sub("N", _INDEX.sub("", text)).replace(" ", ""), ""
    while text != before:
        before = text
        for pattern, constant in _STEPS:
            text = pattern.sub(constant, text)
    return _CONSTANT_TERM.fullmatch(text) is None


def is_set_undone(gold: str, answer: str) -> bool:
    r"""Return whether the answer has a union, intersection or difference that was left undone.

    `(-\infty,0)\cup(0,\infty)` is a set written out, and so is `\mathbb{R}\setminus\{0\}`, by as many signs each.
    """
    if r"\cap" in answer and r"\cap" not in gold:
        return True
    if re.search(r"\\\} ?\\(?:cup|setminus)", answer) and not re.search(r"\\\} ?\\(?:cup|setminus)", gold):
        return True
    return r"\setminus" not in gold and len(_SET_OPERATION.findall(answer)) > len(_SET_OPERATION.findall(gold))
