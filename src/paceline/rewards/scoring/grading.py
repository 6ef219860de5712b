"""Grades the rows of one reward function in a batch: its call, numbers, failures and notes."""

import math
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Complex, Real
from types import NoneType, UnionType

from paceline.errors import RewardError
from paceline.rewards.function import BuiltIn, Grade, RewardFunction, compares_group, is_for, is_marked
from paceline.rewards.scoring.calling import Arguments, CallOutcome, TooSlow, accepted, arguments_of, outcomes
from paceline.runtime.shown_text import hidden
from paceline.types import Task, Trajectory

RowGrade = float | Grade | BaseException | None

# What to do about a result of these types, and about an item of one.
_Remedies = tuple[tuple[type | UnionType, str], ...]
_REMEDIES: _Remedies = (
    (NoneType, "let it end with a return statement"),
    (Mapping, "return its values as a list in the order of the completions"),
    (set | frozenset, "a set has no order and drops what is equal: build a list"),
    (Real, "return one number for each completion, not one for all"),
    (str, "return numbers, not text"),
    (Iterable, "wrap it in list(...)"),
    (object, "build a list"),
)
_ITEM_REMEDIES: _Remedies = (
    (list | tuple, "return one number for each completion, not a list for each"),
    (str, "return a number, such as float(text), or None"),
    (Complex, "return its real part"),
    (object, "return a number or None"),
)


def checked(name: str, result: object, expected: int) -> list[RowGrade]:
    """Convert the result to one number, `Grade`, None or exception per completion; booleans count 1 and 0.

    Arrays and tensors of one dimension count as lists, those of zero dimensions as numbers. An exception instead of a
    number, as from `asyncio.gather(..., return_exceptions=True)`, is the failure of that completion.

    Raises:
        RewardError: the result is anything else; the sentence names function, value and remedy.
    """
    items = _listed(result)
    if not isinstance(items, list | tuple):
        raise _refusal(name, _short(result), expected, _remedy(result, _REMEDIES))
    if len(items) != expected:
        raise _refusal(name, f"{len(items)} items", expected, "return one for each completion, None where it has none")
    return [_item(name, item, index, expected) for index, item in enumerate(items)]


def _item(name: str, item: object, index: int, expected: int) -> RowGrade:
    plain = _listed(item)
    if isinstance(plain, Grade):
        return replace(plain, value=_number(name, plain.value, index, expected), note=str(plain.note))
    if plain is None or isinstance(plain, BaseException):
        return plain
    return _number(name, plain, index, expected)


def _number(name: str, item: object, index: int, expected: int) -> float | None:
    plain = _listed(item)
    if plain is None:
        return None
    if not isinstance(plain, Real):
        raise _refusal(name, f"{_short(item)} at {index}", expected, _remedy(plain, _ITEM_REMEDIES))
    try:
        return float(plain)
    except OverflowError:  # a whole number of more than 308 digits
        return -math.inf if plain < 0 else math.inf


def _listed(value: object) -> object:
    """Convert arrays and tensors of any library to lists and numbers of Python."""
    return value.tolist() if hasattr(value, "tolist") else value


def _refusal(name: str, got: str, expected: int, remedy: str) -> RewardError:
    return RewardError(
        f"reward function {name!r} returned {got}, expected a list of {expected} numbers or None, one per completion; "
        f"{remedy}"
    )


def _remedy(value: object, remedies: _Remedies) -> str:
    return next(remedy for kind, remedy in remedies if isinstance(value, kind))


def _short(value: object) -> str:
    return f"{' '.join(repr(value).split())[:60]} of type {type(value).__name__}"


LARGEST = 3.4e38
"""Largest reward: float32, in which advantages become gradients, holds it, and Python's floats hold its square."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The rows of one function's call."""

    name: str
    function: RewardFunction
    tasks: Sequence[Task]
    rows: Sequence[int]
    """Indices of the rows in the batch that is scored."""
    size: int
    """Completions of that batch."""
    arguments: Arguments


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """Statistics of the calls of one function."""

    failed_calls: int = 0
    """Calls that raised or took too long: on a whole batch, again on it, or on one of its rows alone."""
    doubtful: int = 0
    """Completions graded alone, by a function that raised twice on all of them together and then on none of them alone.
    Such a function may compare completions, and its numbers may mean something else."""
    nans: int = 0
    """NaN results that count as None, as in TRL, of a function that is marked `nan_is_none`."""
    cut_short: int = 0
    """Partly graded completions of a batch that had used up its time, see `Grade.cut_short`."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """Spending of the function by name, see `BuiltIn.counts`."""

    def __add__(self, other: "Tally") -> "Tally":
        numbers = [attribute.name for attribute in fields(self) if attribute.name != "counts"]
        names = {**self.counts, **other.counts}
        return Tally(
            **{name: getattr(self, name) + getattr(other, name) for name in numbers},
            counts={name: self.counts.get(name, 0) + other.counts.get(name, 0) for name in names},
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Graded:
    """Values of one function for a batch, or the reasons why there is none."""

    values: tuple[float | None, ...]
    notes: tuple[str | None, ...]
    failures: Mapping[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    tally: Tally = Tally()
    first_failure: str | None = None
    """First failure of a row, else of the call on all rows, even if a repetition or every row alone succeeded."""


def batch_of(
    name: str,
    function: RewardFunction,
    tasks: Sequence[Task],
    completions: Sequence[Trajectory],
    environments: Sequence[object] = (),
) -> Batch:
    """Return the rows that a function grades, without failed episodes, and the arguments that its signature names."""
    pairs = zip(tasks, completions, strict=True)
    rows = [row for row, (task, completion) in enumerate(pairs) if is_for(task, name) and completion.failure is None]
    chosen = [tasks[row] for row in rows]
    living = [environments[row] for row in rows] if environments else ()
    arguments = accepted(name, function, arguments_of(chosen, [completions[row] for row in rows], living))
    return Batch(name=name, function=function, tasks=chosen, rows=rows, size=len(tasks), arguments=arguments)


def grade(batch: Batch, outcome: CallOutcome, timeout: float) -> Graded:
    """Grade one function's rows. A call that raised is repeated on all rows, and then on each row alone.

    A call that took too long is not repeated, as its deadline is for the whole call. A function that needs whole
    groups, or a batch of one row, is not called on single rows.
    """
    tried = [outcome]
    if outcome.error is not None and not isinstance(outcome.error, TooSlow):
        tried += outcomes([(batch.function, batch.arguments)], timeout=timeout)
    error, size, doubtful = tried[-1].error, len(batch.rows), 0
    if error is None:
        items = checked(batch.name, tried[-1].result, size)
    elif isinstance(error, TooSlow) or compares_group(batch.function) or size == 1:
        items = [error] * size
    else:
        # up to the first row that takes too long: the others would each wait for their deadline
        items, doubtful = [], size
        for row in range(size):
            alone = {key: values[row : row + 1] for key, values in batch.arguments.items()}
            tried += outcomes([(batch.function, alone)], timeout=timeout)
            result, error = tried[-1].result, tried[-1].error
            items += checked(batch.name, result, 1) if error is None else [error]
            if isinstance(error, TooSlow):
                items += [error] * (size - len(items))
                break
    return _graded(batch, items, tried, doubtful)


def _graded(batch: Batch, items: Sequence[RowGrade], tried: Sequence[CallOutcome], doubtful: int) -> Graded:
    """Return the numbers among the items, and for each other item that is not None the reason of its failure.

    `tried`: calls that returned them; `doubtful`: see `Tally`, counted where no row failed.
    """
    values: list[float | None] = [None] * batch.size
    notes: list[str | None] = [None] * batch.size
    failures, nans = dict[int, str](), 0
    for row, task, item in zip(batch.rows, batch.tasks, items, strict=True):
        value, note = (item.value, item.note) if isinstance(item, Grade) else (item, None)
        if isinstance(value, float) and math.isnan(value) and is_marked(batch.function, "nan_is_none"):
            value, note, nans = None, note or "NaN, which counts as None", nans + 1
        if isinstance(value, BaseException):
            failures[row] = _failure(batch.name, f"row {task.task_id}", value)
        elif value is not None and not abs(value) <= LARGEST:
            finite = " in float32" if math.isfinite(value) else ""
            failures[row] = f"{batch.name!r} returned {value} on row {task.task_id}, which is not finite{finite}"
        values[row] = value if isinstance(value, float) and row not in failures else None
        notes[row] = f"failed: {failures[row].splitlines()[0]}" if row in failures else note
    error, function = tried[0].error, batch.function
    counts = function.counts() if isinstance(function, BuiltIn) and function.counts is not None else {}
    batch_failure = None if error is None else _failure(batch.name, "the whole batch", error)
    return Graded(
        values=tuple(values),
        notes=tuple(notes),
        failures=failures,
        seconds=sum(call.seconds for call in tried),
        tally=Tally(
            failed_calls=sum(call.error is not None for call in tried),
            doubtful=0 if failures else doubtful,
            nans=nans,
            cut_short=sum(isinstance(item, Grade) and item.cut_short for item in items),
            counts=counts,
        ),
        first_failure=next(iter(failures.values()), batch_failure),
    )


def _failure(name: str, where: str, error: BaseException) -> str:
    if error.__traceback__ is None:
        return hidden(f"{name!r} failed on {where}: {error or type(error).__name__}")
    trace = "".join(traceback.format_exception(error)).rstrip()
    return hidden(f"{name!r} raised {type(error).__name__} on {where}: {error}\n{trace}")
