"""One reward function's rows of a batch, from its call to numbers, failures and notes."""

import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.rewards.function import Grade, RewardFunction
from paceline.rewards.scoring.arguments import accepted, arguments_of
from paceline.rewards.scoring.calling import Arguments, Outcome, TooSlow, outcomes
from paceline.rewards.scoring.results import Item, checked
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
class Graded:
    """One function's rows: the value, or the reason why there is none."""

    values: tuple[float | None, ...]
    failures: Mapping[int, str]
    notes: tuple[str | None, ...]
    seconds: float
    batch_failure: str | None = None
    """Set where the call on the whole batch raised, though every row alone may have passed."""

    @property
    def first_failure(self) -> str | None:
        """Of a row, else of the batch."""
        return next(iter(self.failures.values()), self.batch_failure)


def batch_of(name: str, function: RewardFunction, tasks: Sequence[Task], completions: Sequence[Completion]) -> Batch:
    """The rows that are for a function, in lists of its own: what one does to a message must not reach the next."""
    rows = [row for row, task in enumerate(tasks) if is_for(task, name)]
    chosen = [tasks[row] for row in rows]
    arguments = accepted(name, function, arguments_of(chosen, [completions[row] for row in rows]))
    return Batch(name=name, function=function, tasks=chosen, rows=rows, arguments=arguments)


def grade(batch: Batch, outcome: Outcome, timeout: float) -> Graded:
    """One function's rows; each row alone, where the call on the whole batch raised."""
    name, size = batch.name, len(batch.rows)
    if outcome.error is None:
        return _graded(batch, checked(name, outcome.result, size), seconds=outcome.seconds)
    if isinstance(outcome.error, TooSlow):
        return _graded(batch, [outcome.error] * size, seconds=outcome.seconds)
    items, seconds = list[Item](), outcome.seconds
    for row in range(size):
        alone = {key: values[row : row + 1] for key, values in batch.arguments.items()}
        (one,) = outcomes([(batch.function, alone)], timeout=timeout)
        items += checked(name, one.result, 1) if one.error is None else [one.error]
        seconds += one.seconds
        if isinstance(one.error, TooSlow):
            # The deadline is the whole call's: what is left would be waited for row by row.
            items += [one.error] * (size - len(items))
            break
    graded = _graded(batch, items, seconds=seconds)
    return replace(graded, batch_failure=_failure(name, "the whole batch", outcome.error))


def _graded(batch: Batch, items: Sequence[Item], *, seconds: float) -> Graded:
    """The numbers among the items, and for each other item that is not None why it is a failure."""
    failures, values, notes = dict[int, str](), list[float | None](), list[str | None]()
    for row, item in enumerate(items):
        value = item.value if isinstance(item, Grade) else item
        task_id = batch.tasks[row].task_id
        if isinstance(value, BaseException):
            failures[row] = _failure(batch.name, f"row {task_id}", value)
        elif value is not None and not abs(value) <= LARGEST:
            finite = " in float32" if math.isfinite(value) else ""
            failures[row] = f"{batch.name!r} returned {value} on row {task_id}, which is not finite{finite}"
        values.append(value if isinstance(value, float) and row not in failures else None)
        said = item.note if isinstance(item, Grade) else None
        notes.append(f"failed: {failures[row].splitlines()[0]}" if row in failures else said)
    return Graded(values=tuple(values), failures=failures, notes=tuple(notes), seconds=seconds)


def ungraded(size: int) -> Graded:
    """Of a function that no row of the batch is for."""
    return Graded(values=(None,) * size, failures={}, notes=(None,) * size, seconds=0.0)


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
