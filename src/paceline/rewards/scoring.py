"""Scores a batch: the one place where a reward function may fail without ending the run.

A failure is not a wrong answer: it scores None, never 0, it is counted, and its first traceback is kept. A result of
the wrong shape is no failure but a mistake in the function, and ends the run at once.
"""

import asyncio
import inspect
import math
import time
import traceback
from collections.abc import Awaitable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from numbers import Real

from paceline.errors import RewardError, TrainingError
from paceline.rewards.function import RewardFunction
from paceline.types import Completion, Task

Arguments = Mapping[str, list[object]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """What each reward function gave to each completion of a batch."""

    values: Mapping[str, tuple[float | None, ...]]
    """By function, one per completion; None: not its task, or it failed."""
    failed: Mapping[str, tuple[int, ...]]
    """By function, positions of the completions on which it raised or gave a number that is not finite."""
    seconds: Mapping[str, float]
    """By function, wall time of grading the batch."""
    culprit: str | None
    """First failure of the function that failed most: function, row, exception, traceback; None without failure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Graded:
    """One function's rows: the value, or the reason why there is none."""

    values: tuple[float | None, ...]
    failures: Mapping[int, str]
    batch_failure: str | None = None
    """Set where the call on the whole batch raised, though every row alone may have passed."""


def score(functions: Mapping[str, RewardFunction], tasks: Sequence[Task], completions: Sequence[Completion]) -> Scores:
    """Grade completions; `tasks[i]` is the task of `completions[i]`.

    A function that raises on the batch is called again row by row, so that only the rows that fail are lost.

    Raises:
        RewardError: a function asks for an argument that is no column, or its result is not a list with one number
            or None per completion.
        ValueError: as many tasks as completions are needed.
    """
    if len(tasks) != len(completions):
        raise ValueError(f"one task per completion is needed, got {len(tasks)} tasks, {len(completions)} completions")
    arguments = _arguments(tasks, completions)
    graded, seconds = dict[str, _Graded](), dict[str, float]()
    for name, function in functions.items():
        started = time.perf_counter()
        graded[name] = _grade(name, function, _accepted(name, function, arguments), tasks)
        seconds[name] = time.perf_counter() - started
    return Scores(
        values={name: one.values for name, one in graded.items()},
        failed={name: tuple(one.failures) for name, one in graded.items()},
        seconds=seconds,
        culprit=_culprit(graded),
    )


def combine(rewards: Mapping[str, float | None], weights: Mapping[str, float]) -> float | None:
    """The weighted sum of the rewards that are there; None where no function gave one.

    >>> combine({"accuracy": 1.0, "format": 0.5, "code": None}, {"accuracy": 2.0, "format": 1.0, "code": 9.0})
    2.5
    """
    given = [weights[name] * reward for name, reward in rewards.items() if reward is not None]
    return math.fsum(given) if given else None


def check_failure_rate(scores: Scores, *, limit: float) -> None:
    """Refuse to go on when a reward function failed on more than the share `limit` of the batch.

    Raises:
        TrainingError: it names function, rate, limit and the first failure.
    """
    for name, failed in scores.failed.items():
        total = len(scores.values[name])
        if total and len(failed) / total > limit:
            raise TrainingError(
                f"reward function {name!r} failed on {len(failed)} of {total} completions "
                f"({len(failed) / total:.1%}), above --max-reward-failure-rate {limit:g}; correct it and resume; "
                f"the first failure: {scores.culprit}"
            )


def _arguments(tasks: Sequence[Task], completions: Sequence[Completion]) -> Arguments:
    """What every reward function may ask for; a column that not every task has is None where it is missing."""
    columns = dict.fromkeys(name for task in tasks for name in task.columns)
    return {
        **{name: [task.columns.get(name) for task in tasks] for name in columns},
        "answer": [task.answer for task in tasks],
        "prompts": [task.prompt for task in tasks],
        "completions": [completion.text for completion in completions],
        "completion_ids": [list(completion.token_ids) for completion in completions],
    }


def _accepted(name: str, function: RewardFunction, arguments: Arguments) -> Arguments:
    """The arguments that the function's signature takes."""
    parameters = inspect.signature(function).parameters.values()
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    missing = [one.name for one in named if one.default is one.empty and one.name not in arguments]
    missing += [one.name for one in parameters if one.kind is one.POSITIONAL_ONLY]
    if missing:
        raise RewardError(
            f"reward function {name!r} asks for the argument {missing[0]!r}, which it cannot get by name; "
            f"it can have {', '.join(arguments)}"
        )
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return arguments
    return {one.name: arguments[one.name] for one in named if one.name in arguments}


def _grade(name: str, function: RewardFunction, arguments: Arguments, tasks: Sequence[Task]) -> _Graded:
    if not tasks:
        return _Graded(values=(), failures={})
    try:
        result = _call(function, arguments)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a grader raises is counted, not fatal
        return _grade_rows(name, function, arguments, tasks, batch_failure=_failure(name, "the whole batch", error))
    return _finite(name, _checked(name, result, len(tasks)), tasks)


def _grade_rows(
    name: str, function: RewardFunction, arguments: Arguments, tasks: Sequence[Task], *, batch_failure: str
) -> _Graded:
    """Each row alone, after the call on the whole batch raised."""
    numbers: list[float | None] = []
    raised: dict[int, str] = {}
    for row, task in enumerate(tasks):
        try:
            result = _call(function, {key: values[row : row + 1] for key, values in arguments.items()})
        except (Exception, SystemExit) as error:  # noqa: BLE001 - as above, for one row
            raised[row] = _failure(name, f"row {task.task_id}", error)
            result = [None]
        numbers += _checked(name, result, 1)
    graded = _finite(name, numbers, tasks)
    failures = dict(sorted({**raised, **graded.failures}.items()))
    return _Graded(values=graded.values, failures=failures, batch_failure=batch_failure)


def _call(function: RewardFunction, arguments: Arguments) -> object:
    """The function's result on lists of its own; an awaitable is run to its end."""
    result: object = function(**{name: list(values) for name, values in arguments.items()})
    return _wait(result) if inspect.isawaitable(result) else result


def _wait(awaitable: Awaitable[object]) -> object:
    async def awaited() -> object:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(awaited())
    with ThreadPoolExecutor(max_workers=1) as thread:  # a notebook's loop is running in this one
        return thread.submit(asyncio.run, awaited()).result()


def _checked(name: str, result: object, expected: int) -> list[float | None]:
    """The result as numbers.

    Raises:
        RewardError: it is not a list or tuple of `expected` numbers or Nones.
    """
    wanted = f"a list of {expected} numbers or None, one per completion"
    if not isinstance(result, list | tuple):
        raise RewardError(f"reward function {name!r} returned {_short(result)}, expected {wanted}")
    if len(result) != expected:
        raise RewardError(f"reward function {name!r} returned {len(result)} items, expected {wanted}")
    for position, item in enumerate(result):
        if item is not None and not isinstance(item, Real):
            raise RewardError(f"reward function {name!r} returned {_short(item)} at {position}, expected {wanted}")
    return [None if item is None else float(item) for item in result]


def _finite(name: str, numbers: Sequence[float | None], tasks: Sequence[Task]) -> _Graded:
    failures = {
        row: f"{name!r} returned {number} on row {tasks[row].task_id}, which is not finite"
        for row, number in enumerate(numbers)
        if number is not None and not math.isfinite(number)
    }
    values = tuple(None if row in failures else number for row, number in enumerate(numbers))
    return _Graded(values=values, failures=failures)


def _failure(name: str, where: str, error: BaseException) -> str:
    trace = "".join(traceback.format_exception(error)).rstrip()
    return f"{name!r} raised {type(error).__name__} on {where}: {error}\n{trace}"


def _culprit(graded: Mapping[str, _Graded]) -> str | None:
    most = max(graded.values(), key=lambda one: len(one.failures), default=None)
    if most is not None and most.failures:
        return next(iter(most.failures.values()))
    return next((one.batch_failure for one in graded.values() if one.batch_failure), None)


def _short(value: object) -> str:
    return f"{repr(value)[:60]} of type {type(value).__name__}"
