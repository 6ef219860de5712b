"""One reward function's rows of a batch, from its call to numbers, failures and notes."""

import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.rewards.function import Grade, RewardFunction, compares_group, takes_nan_for_none
from paceline.rewards.scoring.arguments import Arguments, accepted, arguments_of
from paceline.rewards.scoring.calling import CallOutcome, TooSlow, outcomes
from paceline.rewards.scoring.results import RowGrade, checked
from paceline.rewards.selecting import is_for
from paceline.types import Completion, Task

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
        alone = _row_by_row(batch, timeout)
        items = [item for one in alone for item in _items_of(batch.name, one)]
        items += [alone[-1].error] * (size - len(items))  # where one took too long, all that was left
        tried += alone
    graded = _graded(batch, items)
    tally = Tally(
        failed_calls=sum(one.error is not None for one in tried),
        doubtful=0 if error is None or is_last or graded.failures else size,
        nans=graded.tally.nans,
        cut_short=graded.tally.cut_short,
    )
    failure = None if outcome.error is None else _failure(batch.name, "the whole batch", outcome.error)
    return replace(graded, tally=tally, seconds=sum(one.seconds for one in tried), batch_failure=failure)


def _row_by_row(batch: Batch, timeout: float) -> list[CallOutcome]:
    """One call per row, up to the first that takes too long: what is left would be waited for row by row."""
    found = list[CallOutcome]()
    for row in range(len(batch.rows)):
        alone = {key: values[row : row + 1] for key, values in batch.arguments.items()}
        found += outcomes([(batch.function, alone)], timeout=timeout)
        if isinstance(found[-1].error, TooSlow):
            break
    return found


def _items_of(name: str, alone: CallOutcome) -> list[RowGrade]:
    return checked(name, alone.result, 1) if alone.error is None else [alone.error]


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
