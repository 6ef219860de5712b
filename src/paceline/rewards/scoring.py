"""Scores a batch: the one place where a reward function may fail without ending the run.

A failure is not a wrong answer: it scores None, never 0, it is counted, and its first traceback is kept. A result of
the wrong shape is no failure but a mistake in the function, and ends the run at once.
"""

import inspect
import math
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.errors import RewardError, TrainingError
from paceline.rewards.calling import Arguments, Outcome, outcomes
from paceline.rewards.function import RewardFunction
from paceline.rewards.results import Item, checked
from paceline.types import Completion, Task

LARGEST = 3.4e38
"""What float32, in which advantages become gradients, can hold; the square of it still fits Python's own floats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """What each reward function gave to each completion of a batch."""

    values: Mapping[str, tuple[float | None, ...]]
    """By function, one per completion; None: not its task, or it failed."""
    failed: Mapping[str, tuple[int, ...]]
    """By function, positions of the completions on which it raised or gave a number that float32 cannot hold."""
    seconds: Mapping[str, float]
    """By function, wall time of grading the batch; async functions wait at the same time, which each counts."""
    first_failures: Mapping[str, str]
    """By function that failed, its first failure: function, row, exception, traceback."""

    @property
    def culprit(self) -> str | None:
        """First failure of the function that failed most; None without failure."""
        most = max(self.first_failures, key=lambda name: len(self.failed[name]), default=None)
        return None if most is None else self.first_failures[most]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Graded:
    """One function's rows: the value, or the reason why there is none."""

    values: tuple[float | None, ...]
    failures: Mapping[int, str]
    seconds: float
    batch_failure: str | None = None
    """Set where the call on the whole batch raised, though every row alone may have passed."""


def score(functions: Mapping[str, RewardFunction], tasks: Sequence[Task], completions: Sequence[Completion]) -> Scores:
    """Grade completions; `tasks[i]` is the task of `completions[i]`.

    A function that raises on the batch is called again row by row, so that only the rows that fail are lost. Async
    functions run at the same time, once the others are done.

    Raises:
        RewardError: a function asks for an argument that is no column, or its result is not a list with one number
            or None per completion.
        ValueError: as many tasks as completions are needed.
    """
    if len(tasks) != len(completions):
        raise ValueError(f"one task per completion is needed, got {len(tasks)} tasks, {len(completions)} completions")
    if not tasks:
        return _nothing(functions)
    # Lists of its own for each function: what one does to a message must not reach the next.
    calls = [(name, one, _accepted(name, one, _arguments(tasks, completions))) for name, one in functions.items()]
    results = outcomes([(function, arguments) for _, function, arguments in calls])
    graded = {
        name: _grade(name, function, arguments, outcome, tasks)
        for (name, function, arguments), outcome in zip(calls, results, strict=True)
    }
    return Scores(
        values={name: one.values for name, one in graded.items()},
        failed={name: tuple(one.failures) for name, one in graded.items()},
        seconds={name: one.seconds for name, one in graded.items()},
        first_failures={name: why for name, one in graded.items() if (why := _first_failure(one)) is not None},
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
    if not scores.failed:
        return
    name = max(scores.failed, key=lambda one: len(scores.failed[one]))
    failed, total = len(scores.failed[name]), len(scores.values[name])
    if total and failed / total > limit:
        raise TrainingError(
            f"reward function {name!r} failed on {failed} of {total} completions ({failed / total:.1%}), above "
            f"--max-reward-failure-rate {limit:g}; correct it and resume; the first failure: {scores.culprit}"
        )


def check_any_reward(scores: Scores) -> None:
    """Refuse to go on when not one completion of the step got a reward: there is nothing to learn from.

    Raises:
        TrainingError: it names every function, how often it failed, and the first failure where there is one.
    """
    total = max(map(len, scores.values.values()), default=0)
    if not total or any(value is not None for values in scores.values.values() for value in values):
        return
    failed = ", ".join(f"{name!r} failed on {len(rows)}" for name, rows in scores.failed.items())
    raise TrainingError(
        f"no completion of the step got a reward: of {total} completions {failed}, and the rest got None; "
        "correct the reward functions, or start a run with --reward-funcs that give numbers for the dataset's rows"
        f"{f'; the first failure: {scores.culprit}' if scores.culprit else ''}"
    )


def check_arguments(functions: Mapping[str, RewardFunction], tasks: Sequence[Task]) -> None:
    """Refuse, before the first step, a function that asks for what the tasks of a dataset do not have.

    Raises:
        RewardError: it names function and argument, and the arguments that there are.
    """
    for name, function in functions.items():
        _accepted(name, function, _arguments(tasks[:1], ()))


def _nothing(names: Iterable[str]) -> Scores:
    """The scores of an empty batch, for which no function is called."""
    return Scores(
        values=dict.fromkeys(names, ()),
        failed=dict.fromkeys(names, ()),
        seconds=dict.fromkeys(names, 0.0),
        first_failures={},
    )


def _arguments(tasks: Sequence[Task], completions: Sequence[Completion]) -> Arguments:
    """What every reward function may ask for; a column that not every task has is None where it is missing."""
    columns = dict.fromkeys(name for task in tasks for name in task.columns)
    return {
        **{name: [task.columns.get(name) for task in tasks] for name in columns},
        "answer": [task.answer for task in tasks],
        "prompts": [task.prompt for task in tasks],
        "prompt_messages": [None if task.messages is None else [dict(one) for one in task.messages] for task in tasks],
        "completions": [completion.text for completion in completions],
        "completion_ids": [list(completion.token_ids) for completion in completions],
    }


def _accepted(name: str, function: RewardFunction, arguments: Arguments) -> Arguments:
    """The arguments that the function's signature takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise RewardError(
            f"reward function {name!r} has no signature that can be read ({error}); wrap it in a function of Python"
        ) from error
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


def _grade(
    name: str, function: RewardFunction, arguments: Arguments, outcome: Outcome, tasks: Sequence[Task]
) -> _Graded:
    """One function's rows; each row alone, where the call on the whole batch raised."""
    if outcome.error is None:
        return _graded(name, checked(name, outcome.result, len(tasks)), tasks, seconds=outcome.seconds)
    items, seconds = list[Item](), outcome.seconds
    for row in range(len(tasks)):
        (alone,) = outcomes([(function, {key: values[row : row + 1] for key, values in arguments.items()})])
        items += checked(name, alone.result, 1) if alone.error is None else [alone.error]
        seconds += alone.seconds
    graded = _graded(name, items, tasks, seconds=seconds)
    return replace(graded, batch_failure=_failure(name, "the whole batch", outcome.error))


def _graded(name: str, items: Sequence[Item], tasks: Sequence[Task], *, seconds: float) -> _Graded:
    """The numbers among the items, and for each other item that is not None why it is a failure."""
    failures = dict[int, str]()
    for row, item in enumerate(items):
        if isinstance(item, BaseException):
            failures[row] = _failure(name, f"row {tasks[row].task_id}", item)
        elif item is not None and not abs(item) <= LARGEST:
            finite = " in float32" if math.isfinite(item) else ""
            failures[row] = f"{name!r} returned {item} on row {tasks[row].task_id}, which is not finite{finite}"
    numbers = (item if isinstance(item, float) and row not in failures else None for row, item in enumerate(items))
    return _Graded(values=tuple(numbers), failures=failures, seconds=seconds)


def _failure(name: str, where: str, error: BaseException) -> str:
    if error.__traceback__ is None:
        return f"{name!r} failed on {where}: {error or type(error).__name__}"
    trace = "".join(traceback.format_exception(error)).rstrip()
    return f"{name!r} raised {type(error).__name__} on {where}: {error}\n{trace}"


def _first_failure(graded: _Graded) -> str | None:
    """Of a row, else of the batch."""
    return next(iter(graded.failures.values()), graded.batch_failure)
