r"""Whether an answer equals the gold answer, as mathematics: `math_equal`.

The first rule that knows the two texts decides:

| rule       | decides                                   | equal                | different           |
|------------|-------------------------------------------|----------------------|---------------------|
| same text  | identical after stripping                 | anything with itself | empty with anything |
| quantities | both are numbers (`quantities`), exactly  | `1,000`, `1000`      | `0.333`, `1/3`      |
| choice     | gold is one capital letter A-J            | `(B)`, `B.`          | `A, B, C`, `B`      |
| assignment | one name on the left of one `=`           | `x=5`, `5`           | `41=42`, `42`       |
| collection | either has elements: tuple, set, interval | `6, 4` and `4, 6`    | `(2,1)` and `(1,2)` |
| words      | either holds a word: same words, any case | `Yes`, `\text{yes}`  | `42 or 43`, `42`    |
| unfinished | gold is a number, answer a calculation    |                      | `17+25`, `42`       |
| symbolic   | the rest, by math-verify (`symbolic`)     | `2(x+1)`, `2x+2`     | `2x+1`, `2y+1`      |

There is no tolerance: 3.14 is not pi. When in doubt the answer is wrong: a false zero is a missed reward, a false
one is a lesson in cheating. Not symmetric: 84/2 does not answer 42, 42 does answer 84/2.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from paceline.rewards.notation import normalise
from paceline.rewards.quantities import parse_quantity, same_quantity
from paceline.rewards.symbolic import MAX_DEPTH, MAX_LENGTH, bracket_depth, symbolic_equal

MAX_UNORDERED = 32
"""Elements of a set that is compared in any order; the work grows with the square."""

_CHOICE = re.compile(r"\(?([A-J])\)?")
_ASSIGNMENT = re.compile(r"((?:[a-zA-Z]|\\[a-zA-Z]+)(?:_\{?\w+\}?)?(?:\([a-z]\))?) ?(?:=|\\in(?![a-zA-Z])) ?([^=]+)")
_RELATION = re.compile(r"=|\\in(?![a-zA-Z])")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{[a-z]+\*?\}|\\[a-zA-Z]+")
_WORD = re.compile(r"[a-zA-Z]{4,}|(?<![a-zA-Z])(?:or|and|not|is|no|yes|the|if|all|any)(?![a-zA-Z])|[^\x00-\x7f°]")
_LETTERS = re.compile(r"[a-zA-Z][a-zA-Z' -]+")
_NOT_MATHS = re.compile(
    r"[0-9]\s+[0-9]|[0-9]\s*_|[0-9]\.[0-9]*\.|:|\$"
    r"|\\(?:quad|qquad|f?boxed|approx|equiv|sim|simeq|cong|to|[A-Za-z]*arrow|[(\[)\]])"
)
_POWER_OF_TEN = re.compile(r"(?<=[0-9]) ?\\(?:times|cdot) ?(?=10 ?\^)")
_FINISHED = re.compile(r"-?(?:[0-9. {}()\[\]^]|\\(?:sqrt|frac|ln)(?![a-zA-Z])|\\log(?:_\{?[0-9]+\}?)?(?![a-zA-Z]))+")


@lru_cache(maxsize=65536)
def math_equal(gold: str, answer: str) -> bool:
    """Whether `answer` is `gold`; the table above says by which rule.

    Bounded work: texts above 4096 characters or with brackets nested above 16 are compared as text only.

    >>> math_equal("1000", "1,000"), math_equal("12", "1,2"), math_equal("1/2", "0.5")
    (True, False, True)
    """
    gold, answer = gold.strip(), answer.strip()
    if not gold or not answer:
        return False
    if gold == answer:
        return True
    if max(len(gold), len(answer)) > MAX_LENGTH or max(bracket_depth(gold), bracket_depth(answer)) > MAX_DEPTH:
        return False
    return _equal(normalise(gold), normalise(answer))


def _equal(gold: str, answer: str) -> bool:
    """`math_equal` of two normalised texts."""
    if not gold or not answer:
        return False
    if gold == answer:
        return True
    gold_number, answer_number = parse_quantity(gold), parse_quantity(answer)
    if gold_number and answer_number:
        return same_quantity(gold_number, answer_number)
    if choice := _CHOICE.fullmatch(gold):
        given = _CHOICE.fullmatch(answer.rstrip(":)").lstrip("("))
        return given is not None and given[1] == choice[1]
    if _assigned(gold) or _assigned(answer):
        return _equal_assigned(gold, answer)
    gold_elements, answer_elements = _collection(gold), _collection(answer)
    if gold_elements or answer_elements:
        return gold_elements is not None and answer_elements is not None and gold_elements.matches(answer_elements)
    return _equal_expressions(gold, answer, gold_is_number=gold_number is not None)


def _assigned(text: str) -> re.Match[str] | None:
    """The name and the value of `name = value`; None for anything else: `x = x+1`, a list of assignments."""
    found = _ASSIGNMENT.fullmatch(text) if len(_split(text)) == 1 else None
    return found if found and found[1] not in found[2] else None


def _equal_assigned(gold: str, answer: str) -> bool:
    """Equal where at least one text gives its value a name: a name may be left out, two names must agree."""
    named_gold, named_answer = _assigned(gold), _assigned(answer)
    if named_gold and named_answer and named_gold[1] == named_answer[1]:
        return _equal(named_gold[2].strip(), named_answer[2].strip())
    if named_gold and "=" not in answer:
        return _equal(named_gold[2].strip(), answer)
    if named_answer and "=" not in gold:
        return _equal(gold, named_answer[2].strip())
    return _equal_expressions(gold, answer, gold_is_number=False)


def _equal_expressions(gold: str, answer: str, *, gold_is_number: bool) -> bool:
    """Equal as words or as algebra."""
    if _is_words(gold) or _is_words(answer):
        return _words(gold) == _words(answer)
    if _NOT_MATHS.search(gold) or _NOT_MATHS.search(answer):
        return gold.replace(" ", "") == answer.replace(" ", "") and not re.search(r"[0-9] [0-9]", gold + answer)
    in_gold, in_answer = len(_RELATION.findall(gold)), len(_RELATION.findall(answer))
    if in_gold != in_answer or in_gold > 1:
        return False
    if gold_is_number and not _is_finished(gold, answer):
        return False
    return symbolic_equal(gold, answer)


def _is_words(text: str) -> bool:
    """Whether the text is language: as algebra, `no` would be n times o, the same as `on`."""
    bare = _ENVIRONMENT.sub(" ", text)
    return _WORD.search(bare) is not None or _LETTERS.fullmatch(text) is not None or bare.strip().isalpha()


def _words(text: str) -> str:
    """The words in one spelling. A single letter keeps its case: `a` may be a side and `A` an angle."""
    plain = re.sub(r"\\(?:text|mathrm|textbf)\s*\{([^{}]*)\}", r"\1", text)
    plain = re.sub(r"\s+", " ", plain).strip(" .!\"'")
    return plain if len(plain) == 1 else plain.casefold()


def _is_finished(gold: str, answer: str) -> bool:
    """Whether the answer to a plain number is a constant, such as a root or a power, and not a calculation.

    A calculation would let a model answer "what is 17 + 25?" with the question.
    """
    body = _POWER_OF_TEN.sub("", answer).replace("^{-", "^{")
    divides_integer = r"\frac" in answer and re.fullmatch(r"-?[0-9,]+", gold) is not None
    return _FINISHED.fullmatch(body) is not None and not divides_integer


@dataclass(frozen=True, kw_only=True, slots=True)
class _Collection:
    """Several elements between brackets, or bare (`6, 4`)."""

    brackets: str
    """Opening and closing bracket, `{}` for a set and for a bare list."""
    elements: tuple[str, ...]

    def matches(self, answer: "_Collection") -> bool:
        """Same brackets, same elements; in the same order unless it is a set."""
        if self.brackets != answer.brackets or len(self.elements) != len(answer.elements):
            return False
        if self.brackets != "{}" or len(self.elements) > MAX_UNORDERED:
            return all(_equal(gold, given) for gold, given in zip(self.elements, answer.elements, strict=True))
        left = list(answer.elements)
        for gold in self.elements:
            match = next((given for given in left if _equal(gold, given)), None)
            if match is None:
                return False
            left.remove(match)
        return True


def _collection(text: str) -> _Collection | None:
    r"""The text as a collection of two or more elements; None for a single value. `\pm 2` is the set of 2 and -2."""
    plain = text.replace(r"\{", "{").replace(r"\}", "}")
    brackets, inner = _outer_brackets(plain)
    elements = [sign for element in _split(inner) for sign in _both_signs(element)]
    if len(elements) < 2:
        return None
    return _Collection(brackets=brackets or "{}", elements=tuple(elements))


def _outer_brackets(text: str) -> tuple[str, str]:
    """The brackets around the whole text and what they hold; no brackets where none span it."""
    if text[0] not in "([{" or text[-1] not in ")]}":
        return "", text
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and position < len(text) - 1:
            return "", text
    return text[0] + text[-1], text[1:-1]


def _split(text: str) -> list[str]:
    """The parts between the commas and semicolons that stand outside every bracket."""
    parts, depth, start = list[str](), 0, 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character in ",;" and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    return [*parts, text[start:].strip()]


def _both_signs(element: str) -> tuple[str, ...]:
    r"""Both values of an element with one `\pm`; the element itself otherwise."""
    before, sign, after = element.partition(r"\pm")
    if not sign or r"\pm" in after or "=" in before:
        return (element,)
    before, after = before.strip(), after.strip()
    return (f"{before}+{after}" if before else after, f"{before}-{after}")
