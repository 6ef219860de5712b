"""From what a reward function returned to numbers, or to one sentence that says what is wrong with it."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from numbers import Complex, Real

from paceline.errors import RewardError
from paceline.rewards.function import Grade

RowGrade = float | Grade | BaseException | None


def checked(name: str, result: object, expected: int) -> list[RowGrade]:
    """The result as one number, `Grade`, None or exception per completion; booleans count 1 and 0.

    Arrays and tensors of one dimension are taken for lists, those of none for numbers. An exception in the place of a
    number, as `asyncio.gather(..., return_exceptions=True)` leaves it, is the failure of that completion.

    Raises:
        RewardError: anything else; the sentence names function, value and remedy.
    """
    items = _listed(result)
    if not isinstance(items, list | tuple):
        raise _refusal(name, _short(result), expected, _remedy(result))
    if len(items) != expected:
        raise _refusal(name, f"{len(items)} items", expected, "return one for each completion, None where it has none")
    return [_item(name, item, place, expected) for place, item in enumerate(items)]


def _item(name: str, item: object, place: int, expected: int) -> RowGrade:
    plain = _listed(item)
    if isinstance(plain, Grade):
        return replace(plain, value=_number(name, plain.value, place, expected), note=str(plain.note))
    if plain is None or isinstance(plain, BaseException):
        return plain
    return _number(name, plain, place, expected)


def _number(name: str, item: object, place: int, expected: int) -> float | None:
    plain = _listed(item)
    if plain is None:
        return None
    if not isinstance(plain, Real):
        raise _refusal(name, f"{_short(item)} at {place}", expected, _item_remedy(plain))
    try:
        return float(plain)
    except OverflowError:  # a whole number of more than 308 digits
        return -math.inf if plain < 0 else math.inf


def _listed(value: object) -> object:
    """Arrays and tensors of any library as lists and numbers of Python."""
    return value.tolist() if hasattr(value, "tolist") and hasattr(value, "shape") else value


def _refusal(name: str, got: str, expected: int, remedy: str) -> RewardError:
    return RewardError(
        f"reward function {name!r} returned {got}, expected a list of {expected} numbers or None, one per completion; "
        f"{remedy}"
    )


def _remedy(result: object) -> str:
    if result is None:
        return "let it end with a return statement"
    if isinstance(result, Mapping):
        return "return its values as a list in the order of the completions"
    if isinstance(result, set | frozenset):
        return "a set has no order and drops what is equal: build a list"
    if isinstance(result, Real):
        return "return one number for each completion, not one for all"
    if isinstance(result, str):
        return "return numbers, not text"
    return "wrap it in list(...)" if isinstance(result, Iterable) else "build a list"


def _item_remedy(item: object) -> str:
    if isinstance(item, list | tuple):
        return "return one number for each completion, not a list for each"
    if isinstance(item, str):
        return "return a number, such as float(text), or None"
    return "return its real part" if isinstance(item, Complex) else "return a number or None"


def _short(value: object) -> str:
    return f"{' '.join(repr(value).split())[:60]} of type {type(value).__name__}"
