r"""The rules of `math`: whether one text answers another, each decided by the first rule that knows both.

Everything here is exact and fast, but for the last rule, whose proof somebody else gives: `decide` takes a function
that proves two expressions equal, and without one says None where a proof is needed.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from paceline.rewards.maths.choices import all_chosen, chosen, is_choice, several_choices
from paceline.rewards.maths.elements import (
    LABEL,
    NAME,
    as_membership,
    collection,
    equations,
    is_alternative,
    is_matrix,
    matrix_of_list,
    split,
    values_by_name,
)
from paceline.rewards.maths.notation import normalise
from paceline.rewards.maths.quantities import parse_quantity, same_quantity
from paceline.rewards.maths.roundings import approximated, is_decimal
from paceline.rewards.maths.symbolic import is_bounded
from paceline.rewards.maths.times import parse_time, same_time
from paceline.rewards.maths.units import same_unit, scaled_unit
from paceline.rewards.maths.words import bare_words, same_words

MAX_LENGTH = 4096  # Characters; nothing longer is compared but as text
MAX_DEPTH = 20  # Nested brackets; the LaTeX grammar needs about twice the time for each five levels more

Prove = Callable[[str, str], bool]

_ASSIGNMENT = re.compile(rf"({LABEL}|\({NAME}(?:, ?{NAME})+\)) ?(?:=|\\in(?![a-zA-Z])) ?([^=]+)")
_CALCULATED = re.compile(r"((?:[-0-9., +*/^(){}]|\\(?:times|cdot|div|frac|sqrt)(?![a-zA-Z]))*[0-9)}]) ?= ?([^=]+)")
"""A calculation with numbers and its result: `6 * 7 = 42`."""
_CONGRUENCE = re.compile(rf"(?:({NAME}) ?\\equiv ?)?([^=\\]+?) ?\\pmod\{{(\w+)\}}")
_RELATION = re.compile(r"=|\\in(?![a-zA-Z])")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{[a-z]+\*?\}|\\[a-zA-Z]+")
_WORD = re.compile(r"[a-zA-Z]{4,}|(?<![a-zA-Z])(?:or|and|not|is|no|yes|the|if|all|any)(?![a-zA-Z])|[^\x00-\x7f°]")
_CONSTANT = re.compile(r"\+ ?[cC]$")
_PRODUCT = re.compile(r"[a-zA-Z]{1,3}")  # Beside an expression these letters are one too
_LETTERS = re.compile(r"(?=.*[a-zA-Z]{2})(?!.* - )[a-zA-Z][a-zA-Z' -]+")
_NOT_MATHS = re.compile(
    r"[0-9]\s+[0-9]|[0-9)]\s*_|[0-9]\.[0-9]*\.|:|\$"
    r"|\.\.\.|\\(?:quad|qquad|[lc]?dots|f?boxed|approx|equiv|sim|simeq|cong|to|[hv]?phantom|color|textcolor|[A-Za-z]*arrow|[(\[)\]])"
)
_SPELLED = re.compile(
    r"[0-9A-F]+ ?_ ?\{? ?[0-9]{1,2} ?\}?|[0-9.]+(?: ?: ?[0-9.]+)+|[^\\]*\\equiv[^\\]*\\p?mod ?\{\w+\}"
    r"|[^\\]*\\operatorname\{\w+\}[^\\]+"
)
"""A number in a base, a ratio, a congruence, a function that algebra does not know: compared as they are spelled."""
_TEXT_UNIT = re.compile(r"(.+?)(\\(?:text|mathrm|mbox)\s*\{[^{}]*\}(?:\s*\^\s*\{?\s*[23]\s*\}?)?)")
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
"""What becomes of a part that is one constant: N of numbers alone, R with a root or a logarithm."""
_CONSTANT_TERM = re.compile(r"-?(?:N|N?R+)")
"""One number, or one number times roots and logarithms; two numbers side by side are a product to do."""
_DIFFERENTIAL = r"(?:d|\\partial(?![a-zA-Z])|\\mathrm ?\{ ?d ?\})"
_OPERATION = re.compile(
    r"\\(?:sum|prod|int|iint|oint|lim|limsup|liminf|max|min|gcd|lcm)(?![a-zA-Z])"
    rf"|\\frac ?\{{ ?{_DIFFERENTIAL}[^{{}}]*\}} ?\{{ ?{_DIFFERENTIAL} ?[a-zA-Z]"
)
"""A sum, a product, an integral, a limit, the largest of several, a derivative."""
_SET_OPERATION = re.compile(r"\\(?:cup|cap|setminus)(?![a-zA-Z])")
_PLACEHOLDER = re.compile(
    r"(?:see|refer to|cf) .*|n/?a|none|null|nan|unknown|tbd|todo|proof.*|answers? (?:may )?var(?:y|ies).*"
    r"|(?:no|not) answer.*|[-?.*_ ]+"
)
_MAX_WORDS = 200  # Characters of a gold answer in words; nobody repeats a longer one word by word


@dataclass(frozen=True, kw_only=True, slots=True)
class EqualityVerdict:
    """True if an answer is right, and which rule decided."""

    equal: bool
    rule: str
    """A row of the table of `math`, or `timeout`: the proof took too long, and the answer counts as different."""


class _ProofNeededError(Exception):
    """Without a proof the rules cannot go on."""


def decide(gold: str, answer: str, prove: Prove | None = None) -> EqualityVerdict | None:
    """The verdict on one pair; None where it takes a proof and `prove` is not given.

    Bounded work: texts above 4096 characters or with brackets nested above 20 are compared as text only.
    """
    gold, answer = gold.strip(), answer.strip()
    if not gold or not answer:
        return EqualityVerdict(equal=False, rule="same text")
    if gold == answer:
        return EqualityVerdict(equal=True, rule="same text")
    if is_oversized(gold) or is_oversized(answer):
        return EqualityVerdict(equal=False, rule="same text")
    try:
        return _verdict(normalise(gold), normalise(answer), prove or _defer)
    except _ProofNeededError:
        return None


def recognises(gold: str, parse: Callable[[str], bool] | None = None) -> bool | None:
    """Return whether a rule other than "same text" can recognise this gold answer; None if that needs `parse`.

    False for what nobody can answer in another spelling: empty or too long, braces without partner, a placeholder such
    as "See solution", LaTeX that the grammar does not read.
    """
    if not gold.strip() or is_oversized(gold.strip()):
        return False
    try:
        return _recognises(normalise(gold), parse or _defer)
    except _ProofNeededError:
        return None


def is_oversized(text: str) -> bool:
    """Too long or too deep to be compared as maths."""
    if len(text) > MAX_LENGTH:
        return True
    depth = deepest = 0
    for bracket in re.findall(r"[()\[\]{}]", text):
        depth += 1 if bracket in "([{" else -1
        deepest = max(deepest, depth)
    return deepest > MAX_DEPTH


def _defer(*_: str) -> bool:
    raise _ProofNeededError


def _verdict(gold: str, answer: str, prove: Prove) -> EqualityVerdict:
    if not gold or not answer or gold == answer:
        return EqualityVerdict(equal=bool(gold) and gold == answer, rule="same text")
    for rule, judge in _RULES:
        if (equal := judge(gold, answer, prove)) is not None:
            return EqualityVerdict(equal=equal, rule=rule)
    is_number = parse_quantity(gold) is not None
    has_alternative = is_alternative(gold) or is_alternative(answer)
    gold, answer = as_membership(gold), as_membership(answer)
    if not has_alternative and (equal := _same_system(gold, answer, prove)) is not None:
        return EqualityVerdict(equal=equal, rule="assignment")
    if _assigned(gold) or _assigned(answer):
        return EqualityVerdict(equal=_equal_assigned(gold, answer, prove), rule="assignment")
    return _compare_elements(gold, answer, prove) or _compare_expressions(gold, answer, prove, gold_is_number=is_number)


def _same_quantities(gold: str, answer: str, _: Prove) -> bool | None:
    quantities = parse_quantity(gold), parse_quantity(answer)
    return same_quantity(quantities[0], quantities[1]) if quantities[0] and quantities[1] else None


def _same_roundings(gold: str, answer: str, prove: Prove) -> bool | None:
    """Compare where one has a mark of approximation. That makes another answer of an exact integer or fraction."""
    (gold_value, is_rounded), (answer_value, is_approximate) = approximated(gold), approximated(answer)
    if not is_rounded and not is_approximate:
        return None
    return (is_rounded or is_decimal(gold)) and _equal(prove, gold_value, answer_value)


def _same_choices(gold: str, answer: str, _: Prove) -> bool | None:
    if choice := is_choice(gold):
        return chosen(answer) == choice
    choices = several_choices(gold)
    if not choices:
        return None
    given = all_chosen(answer)
    return choices == given if given or is_alternative(answer) else None


def _same_times(gold: str, answer: str, _: Prove) -> bool | None:
    times = parse_time(gold), parse_time(answer)
    return same_time(times[0], times[1]) if times[0] and times[1] else None


def _same_congruences(gold: str, answer: str, _: Prove) -> bool | None:
    first, second = _CONGRUENCE.fullmatch(gold), _CONGRUENCE.fullmatch(answer)
    if not first or not second:
        return None
    names = {_bare(found[1]) for found in (first, second) if found[1]}
    return len(names) <= 1 and first[3] == second[3] and _bare(first[2]) == _bare(second[2])


def _same_result(gold: str, answer: str, prove: Prove) -> bool | None:
    """Compare a gold number with the result of a calculation, which must be right; `41 = 42` calculates nothing."""
    number, calculated = parse_quantity(gold), _CALCULATED.fullmatch(answer)
    if not number or not calculated:
        return None
    left, result = calculated[1].strip(), calculated[2].strip()
    given = None if parse_quantity(left) else parse_quantity(result)
    return given is not None and same_quantity(number, given) and is_bounded(left) and prove(result, left)


_RULES: tuple[tuple[str, Callable[[str, str, Prove], bool | None]], ...] = (
    ("quantities", _same_quantities),
    ("approximation", _same_roundings),
    ("choice", _same_choices),
    ("time", _same_times),
    ("congruence", _same_congruences),
    ("assignment", _same_result),
)
"""Rules that judge the texts as they are, in this order; None: the rule does not know both."""


def _compare_elements(gold: str, answer: str, prove: Prove) -> EqualityVerdict | None:
    """Compare where either has elements; None where it takes algebra."""
    gold_elements, answer_elements = collection(gold), collection(answer)
    if is_matrix(gold) != is_matrix(answer):  # one of them may be a list of rows
        gold_elements = gold_elements if is_matrix(gold) else matrix_of_list(gold) or gold_elements
        answer_elements = answer_elements if is_matrix(answer) else matrix_of_list(answer) or answer_elements
    if not gold_elements and not answer_elements:
        return None
    same = gold_elements and answer_elements and gold_elements.matches(answer_elements, partial(_equal, prove))
    # A set or matrix that is the result of an operation takes algebra.
    is_joined = any(mark in text for text in (gold, answer) for mark in (r"\cup", r"\cap", r"\setminus"))
    are_matrices = r"\begin" in gold and r"\begin" in answer
    if same or not (is_joined or (are_matrices and not (is_matrix(gold) and is_matrix(answer)))):
        return EqualityVerdict(equal=bool(same), rule="collection")
    return EqualityVerdict(equal=False, rule="unfinished") if _is_set_undone(gold, answer) else None


def _equal(prove: Prove, gold: str, answer: str) -> bool:
    return _verdict(gold, answer, prove).equal


def _same_system(gold: str, answer: str, prove: Prove) -> bool | None:
    """Compare the values of two systems by their names, or of one with a tuple; None where it is none of that."""
    first, second = equations(gold), equations(answer)
    if first and second:
        return first.keys() == second.keys() and all(_equal(prove, first[name], second[name]) for name in first)
    if not first and not second:
        return None
    # A tuple that names its own values, `(b,a)=(1,2)`, has them in another order than that of their names.
    if any(system and text.startswith("(") for system, text in ((first, gold), (second, answer))):
        return None
    one, other = (
        values_by_name(system) if system else collection(text) for system, text in ((first, gold), (second, answer))
    )
    if not one or not other or one.brackets != other.brackets:
        return None
    return one.matches(other, partial(_equal, prove))


def _assigned(text: str) -> re.Match[str] | None:
    """The name and the value of `name = value`; None for anything else: `x = x+1`, a list of assignments."""
    found = _ASSIGNMENT.fullmatch(text) if len(split(text)) == 1 else None
    if not found or not _are_balanced(found[1]):
        return None
    value = found[2] if found[1].startswith("\\") else re.sub(r"\\[a-zA-Z]+", " ", found[2])  # `t` is not in `\infty`
    return None if found[1] in value else found


def _equal_assigned(gold: str, answer: str, prove: Prove) -> bool:
    """Equal where at least one text gives its value a name: a name may be left out, two names must agree."""
    named_gold, named_answer = _assigned(gold), _assigned(answer)
    if named_gold and named_answer and _bare_name(named_gold[1]) == _bare_name(named_answer[1]):
        return _equal(prove, named_gold[2].strip(), named_answer[2].strip())
    if named_gold and named_answer and (r"\in" in gold or r"\in" in answer):
        return False
    if named_gold and "=" not in answer:
        return _equal(prove, named_gold[2].strip(), answer)
    if named_answer and "=" not in gold:
        return _equal(prove, gold, named_answer[2].strip())
    if named_gold and not re.search(r"(?<![a-zA-Z\\])[a-zA-Z]", named_gold[2]):
        return False
    return _compare_expressions(gold, answer, prove, gold_is_number=False).equal


def _is_set_undone(gold: str, answer: str) -> bool:
    r"""Return whether the answer has a union, intersection or difference that is yet to be made.

    `(-\infty,0)\cup(0,\infty)` is a set written out, and so is `\mathbb{R}\setminus\{0\}`, by as many signs each.
    """
    if r"\cap" in answer and r"\cap" not in gold:
        return True
    if re.search(r"\\\} ?\\(?:cup|setminus)", answer) and not re.search(r"\\\} ?\\(?:cup|setminus)", gold):
        return True
    return r"\setminus" not in gold and len(_SET_OPERATION.findall(answer)) > len(_SET_OPERATION.findall(gold))


def _compare_expressions(gold: str, answer: str, prove: Prove, *, gold_is_number: bool) -> EqualityVerdict:
    # One of them is language; `xy` beside `x*y` is a product, beside `yx` it is a word.
    language = [text for text in (gold, answer) if _is_words(text)]
    if len(language) == 2 or any(not _PRODUCT.fullmatch(text) for text in language):
        return EqualityVerdict(equal=same_words(bare_words(gold), bare_words(answer)), rule="words")
    if _NOT_MATHS.search(gold) or _NOT_MATHS.search(answer):
        same = _bare(gold) == _bare(answer) and not re.search(r"[0-9] [0-9]", gold + answer)
        return EqualityVerdict(equal=same, rule="words")
    (gold, unit), (answer, given_unit) = _without_unit(gold), _without_unit(answer)
    in_gold, in_answer = len(_RELATION.findall(gold)), len(_RELATION.findall(answer))
    have_other_units = unit and given_unit and not same_unit(unit, given_unit)
    have_other_marks = gold.count("'") != answer.count("'") or in_gold != in_answer or in_gold > 1
    if have_other_units or have_other_marks or _differ_in_case(gold, answer):
        return EqualityVerdict(equal=False, rule="symbolic")
    if _is_unfinished(gold, answer, gold_is_number=gold_is_number):
        return EqualityVerdict(equal=False, rule="unfinished")
    bounded = is_bounded(gold) and is_bounded(answer)
    return EqualityVerdict(equal=bounded and prove(gold, answer), rule="symbolic")


def _without_unit(text: str) -> tuple[str, str]:
    r"""An expression and the unit behind it: `12\pi \text{ cm}^2`. A unit that is not in `\text` may be a variable."""
    found = _TEXT_UNIT.fullmatch(text)
    scaled = scaled_unit(found[2]) if found else None
    return (found[1].strip(), scaled[1]) if found and scaled and not scaled[0] else (text, "")


def _differ_in_case(gold: str, answer: str) -> bool:
    """Return whether a letter that both texts use is a capital in one of them only: the algebra takes `A` for `a`.

    The constant of an integral, `+ C` at the end, may be written either way.
    """
    used = [set(re.findall("[a-zA-Z]", _ENVIRONMENT.sub(" ", _CONSTANT.sub("", text)))) for text in (gold, answer)]
    shared = {one.lower() for one in used[0]} & {one.lower() for one in used[1]}
    return any({one, one.upper()} & used[0] != {one, one.upper()} & used[1] for one in shared)


def _is_words(text: str) -> bool:
    """Return whether the text is language: as algebra, `no` would be n times o, the same as `on`."""
    bare = _ENVIRONMENT.sub(" ", _without_unit(text)[0])
    return _WORD.search(bare) is not None or _LETTERS.fullmatch(text) is not None or text.isalpha()


def _bare_name(name: str) -> str:
    r"""One spelling of a name: `m\angle ABC` is `\angle{ABC}`, `\overline{AB}` is `AB`."""
    return re.sub(r"^(?:m|\\text\{m\})(?=\\angle)|\\overline|[{}|]", "", _bare(name))


def _bare(text: str) -> str:
    """Without spaces and braces around a base: `101_{2}` is `101_2`."""
    return re.sub(r"_\{([0-9]+)\}", r"_\1", text.replace(" ", ""))


def _is_unfinished(gold: str, answer: str, *, gold_is_number: bool) -> bool:
    """Return whether the answer is a calculation that was left undone.

    It would let a model answer "what is 17 + 25?" with the question. The answer to a plain number may be a constant,
    such as a root or a power; a sum, product, integral, limit, derivative or several matrices answer only what is
    written with them itself.
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
        for pattern, made in _STEPS:
            text = pattern.sub(made, text)
    return _CONSTANT_TERM.fullmatch(text) is None


def _recognises(gold: str, parse: Callable[[str], bool]) -> bool:
    if not gold or _PLACEHOLDER.fullmatch(bare_words(gold).casefold()):
        return False
    gold, _ = approximated(gold)
    if parse_quantity(gold) or is_choice(gold) or several_choices(gold) or parse_time(gold):
        return True
    if _SPELLED.fullmatch(gold) or _CONGRUENCE.fullmatch(gold):
        return True
    gold = as_membership(gold)
    if assigned := _assigned(gold):
        return _recognises(assigned[2].strip(), parse)
    if elements := collection(gold):
        return all(_recognises(element, parse) for element in elements.elements)
    if _is_words(gold):
        return len(gold) <= _MAX_WORDS and _are_balanced(gold)
    if _NOT_MATHS.search(gold) or len(_RELATION.findall(gold)) > 1:
        return False
    return is_bounded(gold) and parse(gold)


def _are_balanced(text: str) -> bool:
    return text.count("{") == text.count("}")
