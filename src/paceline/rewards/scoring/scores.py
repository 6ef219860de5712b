"""Scores a batch: the only place where a reward function may fail without ending the run.

A failure is not a wrong answer: it scores None, never 0, it is counted, and its first traceback is kept. A result of
the wrong shape is no failure but a mistake in the function, and ends the run at once.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.errors import TrainingError, with_printed
from paceline.rewards.function import RewardFunction, has_format, is_marked
from paceline.rewards.scoring.calling import outcomes
from paceline.rewards.scoring.grading import Graded, Tally, batch_of, grade
from paceline.types import Task, Trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Scores of each completion of a batch by each reward function."""

    values: Mapping[str, tuple[float | None, ...]]
    """Values by function, one per completion; None: not graded by it, or failed."""
    failed: Mapping[str, tuple[int, ...]]
    """Positions, by function, of completions on which it raised or returned a number that float32 cannot hold."""
    seconds: Mapping[str, float]
    """Wall time by function; async functions that wait at the same time each count it."""
    first_failures: Mapping[str, str]
    """First failure by function, if any call or number failed: function, row, exception, traceback."""
    notes: Mapping[str, tuple[str | None, ...]]
    """Notes by function, one per completion: a remark on the score, or the reason of a failure."""
    tallies: Mapping[str, Tally]
    """Statistics of the calls by function."""
    formed: tuple[bool | None, ...]
    """True for each completion in the format that functions ask for; None if no function asks for one."""
    may_be_silent: bool = False
    """True if a function is marked `may_be_silent`, as those of TRL are: a batch without any reward is no error."""
    environments: frozenset[str] = frozenset()
    """Names that are environments and not functions."""

    @property
    def culprit(self) -> str | None:
        """First failure of the function that failed most; None without failure."""
        most = max(self.first_failures, key=self.against, default=None)
        return None if most is None else self.first_failures[most]

    def named(self, name: str) -> str:
        """Return the name of a function or environment for a sentence."""
        return f"{'environment' if name in self.environments else 'reward function'} {name!r}"

    def against(self, name: str) -> int:
        """Count the completions against `--max-reward-failure-rate`: failures, and doubtful numbers. A failed call that
        succeeded when repeated on the same completions adds none."""
        return len(self.failed[name]) + self.tallies[name].doubtful


def score(
    functions: Mapping[str, RewardFunction],
    tasks: Sequence[Task],
    completions: Sequence[Trajectory],
    *,
    timeout: float,
    environments: Sequence[object] = (),
) -> Scores:
    """Grade completions; `tasks[i]` is the task of `completions[i]`, `environments[i]` its environment, if any has one.

    A function that raises on the batch is called on it again, and then row by row, so that only the rows that fail are
    lost; not row by row where it needs whole groups. One that takes more than `timeout` seconds has failed on all of
    them. Async functions run at the same time, once the others are done. A function is called on the tasks that are for
    it (`is_for`), and gives None for the others.

    Raises:
        RewardError: a function asks for an argument that is no column, or its result is not a list with one number
            or None per completion.
        ValueError: as many tasks as completions are needed.
    """
    if len(tasks) != len(completions):
        raise ValueError(f"one task per completion is needed, got {len(tasks)} tasks, {len(completions)} completions")
    graders = functions.items() if tasks else ()
    batches = [batch_of(name, function, tasks, completions, environments) for name, function in graders]
    batches = [batch for batch in batches if batch.rows]
    calls = [(batch.function, batch.arguments) for batch in batches]
    results = outcomes(calls, timeout=timeout) if tasks else []
    nothing = (None,) * len(tasks)
    graded = dict.fromkeys(functions, Graded(values=nothing, notes=nothing))
    for batch, outcome in zip(batches, results, strict=True):
        graded[batch.name] = grade(batch, outcome, timeout)
    return Scores(
        **_columns(graded),
        formed=tuple(has_format(functions, *pair) for pair in zip(tasks, (c.text for c in completions), strict=True)),
        may_be_silent=any(is_marked(function, "may_be_silent") for function in functions.values()),
    )


def _columns(graded: Mapping[str, Graded]) -> dict[str, Any]:
    """Return the fields of `Scores` that are by function."""
    return {
        "values": {name: result.values for name, result in graded.items()},
        "failed": {name: tuple(result.failures) for name, result in graded.items()},
        "seconds": {name: result.seconds for name, result in graded.items()},
        "first_failures": {name: why for name, result in graded.items() if (why := result.first_failure) is not None},
        "notes": {name: result.notes for name, result in graded.items()},
        "tallies": {name: result.tally for name, result in graded.items()},
    }


def with_environments(scores: Scores, names: Sequence[str], completions: Sequence[Trajectory]) -> Scores:
    """Add the rewards of environments as columns by their names; a failed episode is a failure."""
    graded = dict[str, Graded]()
    for name in names:
        episodes = [completion if completion.environment == name else None for completion in completions]
        failures = {row: e.failure for row, e in enumerate(episodes) if e is not None and e.failure is not None}
        failed = (e for e in episodes if e is not None and e.failure is not None)
        graded[name] = Graded(
            values=tuple(None if e is None else e.reward for e in episodes),
            notes=tuple(f"failed: {failures[row]}" if row in failures else None for row in range(len(episodes))),
            failures=failures,
            seconds=math.fsum(turn.seconds for e in episodes if e is not None for turn in e.turns),
            tally=Tally(failed_calls=len(failures)),
            first_failure=next((with_printed(e.failure or "", e.printed) for e in failed), None),
        )
    columns: dict[str, Any] = {field: {**getattr(scores, field), **added} for field, added in _columns(graded).items()}
    return replace(scores, **columns, environments=frozenset(names))


def combine(rewards: Mapping[str, float | None], weights: Mapping[str, float]) -> float | None:
    """Return the weighted sum of the rewards that are not None; None if all are.

    >>> combine({"accuracy": 1.0, "format": 0.5, "code": None}, {"accuracy": 2.0, "format": 1.0, "code": 9.0})
    2.5
    """
    terms = [weights[name] * reward for name, reward in rewards.items() if reward is not None]
    return math.fsum(terms) if terms else None


def check_failure_rate(scores: Scores, *, limit: float) -> None:
    """Raise TrainingError if a function failed on more than the share `limit`, or its numbers are doubtful."""
    if not scores.failed:
        return
    name = max(scores.failed, key=scores.against)
    failed, total = len(scores.failed[name]), len(scores.values[name])
    if not total or scores.against(name) / total <= limit:
        return
    if failed / total > limit:
        raise TrainingError(
            f"{scores.named(name)} failed on {failed} of {total} completions ({failed / total:.1%}), above "
            f"--max-reward-failure-rate {limit:g}; correct it and resume; the first failure: {scores.culprit}"
        )
    raise TrainingError(
        f"reward function {name!r} raised twice on {scores.tallies[name].doubtful} completions together and on none of "
        "them alone, so its numbers may mean something else; decorate it with paceline.needs_group if it compares "
        "completions, or correct it, and resume; --max-reward-failure-rate 1 lets it pass; the first failure: "
        f"{scores.culprit}"
    )


def check_any_reward(scores: Scores, ends: tuple[str, Sequence[str]] | None = None) -> None:
    """Raise TrainingError when not one completion of the step got a reward, unless functions `may_be_silent`.

    `ends`: how conversations ended, and remedies, for the sentence where environments give all rewards.
    """
    if scores.may_be_silent:
        return
    total = max(map(len, scores.values.values()), default=0)
    if not total or any(value is not None for values in scores.values.values() for value in values):
        return
    if ends is not None and scores.environments.issuperset(scores.values):
        how, remedies = ends
        first = f"; the first failure: {scores.culprit}" if scores.culprit else ""
        remedies = [*remedies[:-1], f"{remedies[-1]}{first}"]
        raise TrainingError(f"no completion of the step got a reward: {how}", remedies=remedies)
    failed = ", ".join(f"{scores.named(name)} failed on {len(rows)}" for name, rows in scores.failed.items())
    blamed = [name for name in scores.failed if scores.failed[name]]
    remedy = (
        f"correct {' and '.join(map(scores.named, blamed))}"
        if blamed and scores.environments.issuperset(blamed)
        else "correct the reward functions, or start a run with --reward-funcs that give numbers for the dataset's rows"
    )
    raise TrainingError(
        f"no completion of the step got a reward: of {total} completions {failed}, and the rest got None; {remedy}"
        f"{f'; the first failure: {scores.culprit}' if scores.culprit else ''}"
    )


def merge_scores(parts: Sequence[Scores]) -> Scores:
    """Concatenate the scores of one or more parts with the same functions."""
    names = parts[0].values.keys()
    starts = [sum(len(part.formed) for part in parts[:index]) for index in range(len(parts))]
    return Scores(
        values={name: tuple(value for part in parts for value in part.values[name]) for name in names},
        failed={
            name: tuple(start + at for start, part in zip(starts, parts, strict=True) for at in part.failed[name])
            for name in names
        },
        seconds={name: math.fsum(part.seconds[name] for part in parts) for name in names},
        first_failures={name: why for part in reversed(parts) for name, why in part.first_failures.items()},
        notes={name: tuple(note for part in parts for note in part.notes[name]) for name in names},
        tallies={name: sum((part.tallies[name] for part in parts), Tally()) for name in names},
        environments=parts[0].environments,
        formed=tuple(formed for part in parts for formed in part.formed),
        may_be_silent=any(part.may_be_silent for part in parts),
    )


def part_of(scores: Scores, first: int, size: int) -> Scores:
    """Return the scores of `size` completions from index `first`; statistics of calls stay those of the whole batch."""
    rows = range(first, first + size)
    return replace(
        scores,
        values={name: values[first : first + size] for name, values in scores.values.items()},
        failed={name: tuple(row - first for row in failed if row in rows) for name, failed in scores.failed.items()},
        notes={name: notes[first : first + size] for name, notes in scores.notes.items()},
        formed=scores.formed[first : first + size],
    )
