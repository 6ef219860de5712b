"""One reward function's rows of a batch, from its call to numbers, failures and notes."""

import math
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Complex, Real
from types import NoneType, UnionType

from paceline.errors import RewardError
from paceline.rewards.function import Grade, RewardFunction, compares_group, takes_nan_for_none
from paceline.rewards.scoring.calling import Arguments, CallOutcome, TooSlow, accepted, arguments_of, outcomes
from paceline.rewards.selecting import is_for
from paceline.types import Completion, Task

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
    remedies: tuple[tuple[type | UnionType, str], ...] = (
        (NoneType, "let it end with a return statement"),
        (Mapping, "return its values as a list in the order of the completions"),
        (set | frozenset, "a set has no order and drops what is equal: build a list"),
        (Real, "return one number for each completion, not one for all"),
        (str, "return numbers, not text"),
        (Iterable, "wrap it in list(...)"),
    )
    return next((remedy for kind, remedy in remedies if isinstance(result, kind)), "build a list")


def _item_remedy(item: object) -> str:
    if isinstance(item, list | tuple):
        return "return one number for each completion, not a list for each"
    if isinstance(item, str):
        return "return a number, such as float(text), or None"
    return "return its real part" if isinstance(item, Complex) else "return a number or None"


def _short(value: object) -> str:
    return f"{' '.join(repr(value).split())[:60]} of type {type(value).__name__}"


LARGEST = 3.4e38
"""What float32, in which advantages become gradients, can hold; the square of it still fits Python's own floats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The rows of one function's call."""

    name: str
    function: RewardFunction
    tasks: Sequence[Task]
    rows: Sequence[int]
    """Their places in the batch that is scored."""
    arguments: Arguments


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """What came of calling one function, beside the numbers that it gave."""

    failed_calls: int = 0
    """Calls that raised or took too long: on a whole batch, again on it, or on one of its rows alone."""
    doubtful: int = 0
    """Completions with a number that the function gave to each alone, after it had raised twice on all of them together
    and then on none: such a function may compare completions, and its numbers may mean something else."""
    nans: int = 0
    """Results that were NaN and count as None (`takes_nan_for_none`)."""
    cut_short: int = 0
    """Completions that were graded in part, as the batch had used up its time: see `Grade.cut_short`."""

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            failed_calls=self.failed_calls + other.failed_calls,
            doubtful=self.doubtful + other.doubtful,
            nans=self.nans + other.nans,
            cut_short=self.cut_short + other.cut_short,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Graded:
    """One function's rows: the value, or the reason why there is none."""

    values: tuple[float | None, ...]
    failures: Mapping[int, str]
    notes: tuple[str | None, ...]
    seconds: float
    tally: Tally
    batch_failure: str | None = None
    """Set where the call on the whole batch failed, though its repetition or every row alone may have passed."""

    @property
    def first_failure(self) -> str | None:
        """Traceback of a row's failure, else of the batch's."""
        return next(iter(self.failures.values()), self.batch_failure)


def batch_of(name: str, function: RewardFunction, tasks: Sequence[Task], completions: Sequence[Completion]) -> Batch:
    """The rows that are for a function, and the arguments that its signature names."""
    rows = [row for row, task in enumerate(tasks) if is_for(task, name)]
    chosen = [tasks[row] for row in rows]
    arguments = accepted(name, function, arguments_of(chosen, [completions[row] for row in rows]))
    return Batch(name=name, function=function, tasks=chosen, rows=rows, arguments=arguments)


def grade(batch: Batch, outcome: CallOutcome, timeout: float) -> Graded:
    """One function's rows. A call that raised is made again whole, and then for each row alone.

    Not so where it took too long, whose deadline is the whole call's; and a function that needs whole groups, or a
    batch of one row, has nothing smaller to be called on.
    """
    tried = [outcome]
    if outcome.error is not None and not isinstance(outcome.error, TooSlow):
        tried += outcomes([(batch.function, batch.arguments)], timeout=timeout)
    error, size = tried[-1].error, len(batch.rows)
    is_last = isinstance(error, TooSlow) or compares_group(batch.function) or size == 1
    if error is None:
        items = checked(batch.name, tried[-1].result, size)
    elif is_last:
        items = [error] * size
    else:
        # Up to the first row that takes too long: what is left would be waited for row by row.
        items = []
        for row in range(size):
            alone = {key: values[row : row + 1] for key, values in batch.arguments.items()}
            tried += outcomes([(batch.function, alone)], timeout=timeout)
            one = tried[-1]
            items += checked(batch.name, one.result, 1) if one.error is None else [one.error]
            if isinstance(one.error, TooSlow):
                items += [one.error] * (size - len(items))
                break
    graded = _graded(batch, items)
    tally = Tally(
        failed_calls=sum(one.error is not None for one in tried),
        doubtful=0 if error is None or is_last or graded.failures else size,
        nans=graded.tally.nans,
        cut_short=graded.tally.cut_short,
    )
    failure = None if outcome.error is None else _failure(batch.name, "the whole batch", outcome.error)
    return replace(graded, tally=tally, seconds=sum(one.seconds for one in tried), batch_failure=failure)


def _graded(batch: Batch, items: Sequence[RowGrade]) -> Graded:
    """The numbers among the items, and for each other item that is not None why it is a failure."""
    failures, values, notes, nans = dict[int, str](), list[float | None](), list[str | None](), 0
    for row, item in enumerate(items):
        value = item.value if isinstance(item, Grade) else item
        said = item.note if isinstance(item, Grade) else None
        task_id = batch.tasks[row].task_id
        if isinstance(value, float) and math.isnan(value) and takes_nan_for_none(batch.function):
            value, said, nans = None, said or "NaN, which counts as None", nans + 1
        if isinstance(value, BaseException):
            failures[row] = _failure(batch.name, f"row {task_id}", value)
        elif value is not None and not abs(value) <= LARGEST:
            finite = " in float32" if math.isfinite(value) else ""
            failures[row] = f"{batch.name!r} returned {value} on row {task_id}, which is not finite{finite}"
        values.append(value if isinstance(value, float) and row not in failures else None)
        notes.append(f"failed: {failures[row].splitlines()[0]}" if row in failures else said)
    cut_short = sum(isinstance(item, Grade) and item.cut_short for item in items)
    tally = Tally(nans=nans, cut_short=cut_short)
    return Graded(values=tuple(values), failures=failures, notes=tuple(notes), seconds=0.0, tally=tally)


def ungraded(size: int) -> Graded:
    """Return the grades of a function that applies to no row of the batch."""
    return Graded(values=(None,) * size, failures={}, notes=(None,) * size, seconds=0.0, tally=Tally())


def spread(graded: Graded, rows: Sequence[int], size: int) -> Graded:
    """What was graded of some rows, in its place among all of them."""
    if len(rows) == size:
        return graded
    values: list[float | None] = [None] * size
    notes: list[str | None] = [None] * size
    for row, value, note in zip(rows, graded.values, graded.notes, strict=True):
        values[row], notes[row] = value, note
    failures = {rows[row]: why for row, why in graded.failures.items()}
    return replace(graded, values=tuple(values), failures=failures, notes=tuple(notes))


def _failure(name: str, where: str, error: BaseException) -> str:
    if error.__traceback__ is None:
        return f"{name!r} failed on {where}: {error or type(error).__name__}"
    trace = "".join(traceback.format_exception(error)).rstrip()
    return f"{name!r} raised {type(error).__name__} on {where}: {error}\n{trace}"
