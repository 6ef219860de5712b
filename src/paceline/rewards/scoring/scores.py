"""Scores a batch: the one place where a reward function may fail without ending the run.

A failure is not a wrong answer: it scores None, never 0, it is counted, and its first traceback is kept. A result of
the wrong shape is no failure but a mistake in the function, and ends the run at once.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.errors import TrainingError, with_printed
from paceline.rewards.function import RewardFunction, is_marked
from paceline.rewards.scoring.calling import outcomes
from paceline.rewards.scoring.grading import Graded, Tally, batch_of, grade
from paceline.rewards.selecting import has_format
from paceline.types import Task, Trajectory


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
    """By function of which a call or a number failed, the first failure: function, row, exception, traceback."""
    notes: Mapping[str, tuple[str | None, ...]]
    """By function, one per completion: what it said of its score, or why it failed."""
    tallies: Mapping[str, Tally]
    """By function, how its calls went."""
    formed: tuple[bool | None, ...]
    """For each completion, True if it has the format that functions ask for; None if none asks for one."""
    may_be_silent: bool = False
    """True if a function is marked `may_be_silent`, as those of TRL are: a batch without any reward is no error."""
    environments: frozenset[str] = frozenset()
    """Names among them that are environments, which gave rewards of their own."""

    @property
    def culprit(self) -> str | None:
        """First failure of the function that failed most; None without failure."""
        most = max(self.first_failures, key=self.against, default=None)
        return None if most is None else self.first_failures[most]

    def named(self, name: str) -> str:
        """Return what gave the rewards of a name, for a sentence."""
        return f"{'environment' if name in self.environments else 'reward function'} {name!r}"

    def against(self, name: str) -> int:
        """Completions that count against `--max-reward-failure-rate`: those that a function failed on or that its
        numbers are doubtful of. A failed call that was made good by another on the same completions takes none."""
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
    it (`selecting`), and gives None for the others.

    Raises:
        RewardError: a function asks for an argument that is no column, or its result is not a list with one number
            or None per completion.
        ValueError: as many tasks as completions are needed.
    """
    if len(tasks) != len(completions):
        raise ValueError(f"one task per completion is needed, got {len(tasks)} tasks, {len(completions)} completions")
    given = (tasks, completions, environments)
    batches = [batch_of(name, one, *given) for name, one in functions.items()] if tasks else []
    batches = [batch for batch in batches if batch.rows]
    calls = [(batch.function, batch.arguments) for batch in batches]
    results = outcomes(calls, timeout=timeout) if tasks else []
    nothing = (None,) * len(tasks)
    graded = dict.fromkeys(functions, Graded(values=nothing, notes=nothing))
    for batch, outcome in zip(batches, results, strict=True):
        graded[batch.name] = grade(batch, outcome, timeout)
    return Scores(
        values={name: one.values for name, one in graded.items()},
        failed={name: tuple(one.failures) for name, one in graded.items()},
        seconds={name: one.seconds for name, one in graded.items()},
        first_failures={name: one.first_failure for name, one in graded.items() if one.first_failure is not None},
        notes={name: one.notes for name, one in graded.items()},
        tallies={name: one.tally for name, one in graded.items()},
        formed=tuple(has_format(functions, task, one.text) for task, one in zip(tasks, completions, strict=True)),
        may_be_silent=any(is_marked(one, "may_be_silent") for one in functions.values()),
    )


def with_environments(scores: Scores, names: Sequence[str], completions: Sequence[Trajectory]) -> Scores:
    """Add what environments gave to their episodes, as further columns by their names; a failed one is a failure."""
    values, failed, notes, seconds, first = {}, {}, {}, {}, {}
    for name in names:
        episodes = [completion if completion.environment == name else None for completion in completions]
        failures = {row: one.failure for row, one in enumerate(episodes) if one is not None and one.failure is not None}
        values[name] = tuple(None if one is None else one.reward for one in episodes)
        failed[name] = tuple(failures)
        notes[name] = tuple(None if row not in failures else f"failed: {failures[row]}" for row in range(len(episodes)))
        seconds[name] = math.fsum(turn.seconds for one in episodes if one is not None for turn in one.turns)
        if failures:
            row = next(iter(failures))
            episode = episodes[row]
            first[name] = with_printed(failures[row], () if episode is None else episode.printed)
    return replace(
        scores,
        values={**scores.values, **values},
        failed={**scores.failed, **failed},
        seconds={**scores.seconds, **seconds},
        first_failures={**scores.first_failures, **first},
        notes={**scores.notes, **notes},
        tallies={**scores.tallies, **{name: Tally(failed_calls=len(rows)) for name, rows in failed.items()}},
        environments=frozenset(names),
    )


def combine(rewards: Mapping[str, float | None], weights: Mapping[str, float]) -> float | None:
    """The weighted sum of the rewards that are there; None where no function gave one.

    >>> combine({"accuracy": 1.0, "format": 0.5, "code": None}, {"accuracy": 2.0, "format": 1.0, "code": 9.0})
    2.5
    """
    given = [weights[name] * reward for name, reward in rewards.items() if reward is not None]
    return math.fsum(given) if given else None


def check_failure_rate(scores: Scores, *, limit: float) -> None:
    """Raise TrainingError where a reward function failed on more than the share `limit` of a batch, or is doubtful."""
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

    `ends`: how conversations ended, and what helps; where environments give all rewards, that is the reason.
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
    """The scores of the parts end to end; there is at least one, and all have the same functions."""
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
        formed=tuple(one for part in parts for one in part.formed),
        may_be_silent=any(part.may_be_silent for part in parts),
    )


def part_of(scores: Scores, first: int, size: int) -> Scores:
    """The scores of `size` completions from the one at `first`; what is said of calls stays that of the whole batch."""
    rows = range(first, first + size)
    return replace(
        scores,
        values={name: values[first : first + size] for name, values in scores.values.items()},
        failed={name: tuple(row - first for row in failed if row in rows) for name, failed in scores.failed.items()},
        notes={name: notes[first : first + size] for name, notes in scores.notes.items()},
        formed=scores.formed[first : first + size],
    )
