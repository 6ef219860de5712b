r"""The rules of `math`: two texts are compared by the first rule that applies to both.

All rules are exact and fast, except the last, which needs a proof: `decide` takes a function that proves two
expressions equal, and without it returns None where a proof is needed.
"""

import re
from collections.abc import Callable
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
from paceline.rewards.maths.expressions import (
    NOT_MATHS,
    RELATION,
    EqualityVerdict,
    Prove,
    bare,
    bare_words,
    compare_expressions,
    is_set_undone,
    is_words,
)
from paceline.rewards.maths.notation import normalise
from paceline.rewards.maths.quantities import (
    approximated,
    is_decimal,
    parse_quantity,
    parse_time,
    same_quantity,
    same_time,
)
from paceline.rewards.maths.symbolic import is_bounded

MAX_LENGTH = 4096  # Characters; nothing longer is compared but as text
MAX_DEPTH = 20  # Nested brackets; the LaTeX grammar needs about twice the time for each five levels more


_ASSIGNMENT = re.compile(rf"({LABEL}|\({NAME}(?:, ?{NAME})+\)) ?(?:=|\\in(?![a-zA-Z])) ?([^=]+)")
_CALCULATED = re.compile(r"((?:[-0-9., +*/^(){}]|\\(?:times|cdot|div|frac|sqrt)(?![a-zA-Z]))*[0-9)}]) ?= ?([^=]+)")
"""A calculation with numbers and its result: `6 * 7 = 42`."""
_CONGRUENCE = re.compile(rf"(?:({NAME}) ?\\equiv ?)?([^=\\]+?) ?\\pmod\{{(\w+)\}}")
_SPELLED = re.compile(
    r"[0-9A-F]+ ?_ ?\{? ?[0-9]{1,2} ?\}?|[0-9.]+(?: ?: ?[0-9.]+)+|[^\\]*\\equiv[^\\]*\\p?mod ?\{\w+\}"
    r"|[^\\]*\\operatorname\{\w+\}[^\\]+"
)
"""A number in a base, a ratio, a congruence, a function that algebra does not know: compared as they are spelled."""
_PLACEHOLDER = re.compile(
    r"(?:see|refer to|cf) .*|n/?a|none|null|nan|unknown|tbd|todo|proof.*|answers? (?:may )?var(?:y|ies).*"
    r"|(?:no|not) answer.*|[-?.*_ ]+"
)
_MAX_WORDS = 200  # Characters of a gold answer in words; nobody repeats a longer one word by word


class _ProofNeededError(Exception):
    """No rule without a proof decides the pair."""


def decide(gold: str, answer: str, prove: Prove | None = None) -> EqualityVerdict | None:
    """Return the verdict on one pair; None where it takes a proof and `prove` is None.

    The work is bounded: texts above 4096 characters or with brackets nested above 20 are compared as text only.
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

    False for texts that have no other spelling: empty or too long, unbalanced braces, a placeholder such as "See
    solution", LaTeX that the grammar does not read.
    """
    if not gold.strip() or is_oversized(gold.strip()):
        return False
    try:
        return _recognises(normalise(gold), parse or _defer)
    except _ProofNeededError:
        return None


def is_oversized(text: str) -> bool:
    """Return whether a text is too long or too deeply nested to be compared as maths."""
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
    return _compare_elements(gold, answer, prove) or compare_expressions(gold, answer, prove, gold_is_number=is_number)


def _same_quantities(gold: str, answer: str, _: Prove) -> bool | None:
    quantities = parse_quantity(gold), parse_quantity(answer)
    return same_quantity(quantities[0], quantities[1]) if quantities[0] and quantities[1] else None


def _same_roundings(gold: str, answer: str, prove: Prove) -> bool | None:
    """Compare where one has a mark of approximation, with which an exact integer or fraction is a different answer."""
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
    stated = all_chosen(answer)
    return choices == stated if stated or is_alternative(answer) else None


def _same_times(gold: str, answer: str, _: Prove) -> bool | None:
    times = parse_time(gold), parse_time(answer)
    return same_time(times[0], times[1]) if times[0] and times[1] else None


def _same_congruences(gold: str, answer: str, _: Prove) -> bool | None:
    first, second = _CONGRUENCE.fullmatch(gold), _CONGRUENCE.fullmatch(answer)
    if not first or not second:
        return None
    names = {bare(match[1]) for match in (first, second) if match[1]}
    return len(names) <= 1 and first[3] == second[3] and bare(first[2]) == bare(second[2])


def _same_result(gold: str, answer: str, prove: Prove) -> bool | None:
    """Compare a gold number with the result of a calculation, which must be right; `41 = 42` is no calculation."""
    number, calculated = parse_quantity(gold), _CALCULATED.fullmatch(answer)
    if not number or not calculated:
        return None
    left, result = calculated[1].strip(), calculated[2].strip()
    stated = None if parse_quantity(left) else parse_quantity(result)
    return stated is not None and same_quantity(number, stated) and is_bounded(left) and prove(result, left)


_RULES: tuple[tuple[str, Callable[[str, str, Prove], bool | None]], ...] = (
    ("quantities", _same_quantities),
    ("approximation", _same_roundings),
    ("choice", _same_choices),
    ("time", _same_times),
    ("congruence", _same_congruences),
    ("assignment", _same_result),
)
"""Rules on the texts as they are, in this order; None: the rule does not apply to both."""


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
    return EqualityVerdict(equal=False, rule="unfinished") if is_set_undone(gold, answer) else None


def _equal(prove: Prove, gold: str, answer: str) -> bool:
    return _verdict(gold, answer, prove).equal


def _same_system(gold: str, answer: str, prove: Prove) -> bool | None:
    """Compare the values of two systems by their names, or of a system with a tuple; None for other texts."""
    first, second = equations(gold), equations(answer)
    if first and second:
        return first.keys() == second.keys() and all(_equal(prove, first[name], second[name]) for name in first)
    if not first and not second:
        return None
    # a tuple with names, `(b,a)=(1,2)`, has its values in another order than that of the names
    if any(system and text.startswith("(") for system, text in ((first, gold), (second, answer))):
        return None
    values, other_values = (
        values_by_name(system) if system else collection(text) for system, text in ((first, gold), (second, answer))
    )
    if not values or not other_values or values.brackets != other_values.brackets:
        return None
    return values.matches(other_values, partial(_equal, prove))


def _assigned(text: str) -> re.Match[str] | None:
    """Match the name and the value of `name = value`; None for anything else: `x = x+1`, a list of assignments."""
    match = _ASSIGNMENT.fullmatch(text) if len(split(text)) == 1 else None
    if not match or not _are_balanced(match[1]):
        return None
    value = match[2] if match[1].startswith("\\") else re.sub(r"\\[a-zA-Z]+", " ", match[2])  # `t` is not in `\infty`
    return None if match[1] in value else match


def _equal_assigned(gold: str, answer: str, prove: Prove) -> bool:
    """Compare where at least one text names its value: a name may be left out, two names must agree."""
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
    return compare_expressions(gold, answer, prove, gold_is_number=False).equal


def _bare_name(name: str) -> str:
    r"""Return one spelling of a name: `m\angle ABC` is `\angle{ABC}`, `\overline{AB}` is `AB`."""
    return re.sub(r"^(?:m|\\text\{m\})(?=\\angle)|\\overline|[{}|]", "", bare(name))


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
    if is_words(gold):
        return len(gold) <= _MAX_WORDS and _are_balanced(gold)
    if NOT_MATHS.search(gold) or len(RELATION.findall(gold)) > 1:
        return False
    return is_bounded(gold) and parse(gold)


def _are_balanced(text: str) -> bool:
    return text.count("{") == text.count("}")
