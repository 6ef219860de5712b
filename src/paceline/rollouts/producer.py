"""Samples and scores a step's completions, and again, a bounded number of times, in the place of filtered groups."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paceline.config import AdvantageConfig
from paceline.engines import Engine, Request, Sampling, sample_key
from paceline.rewards import (
    RewardFunction,
    Scores,
    check_any_reward,
    check_failure_rate,
    early_start,
    merge_scores,
    part_of,
    score,
)
from paceline.rollouts.grouping import Scored, make_groups
from paceline.rollouts.statistics import mean_and_std
from paceline.types import Completion, RolloutGroup, Task

Take = Callable[[int], Sequence[tuple[Task, int]]]
"""The next n tasks of the data order, each with how often it came before, so that it draws anew."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutBatch:
    """All groups of a step and what they cost."""

    groups: tuple[RolloutGroup, ...]
    """In the order of the tasks, filtered ones among them."""
    scores: Scores
    refills: int
    """Further rounds of sampling that replaced filtered groups."""
    missing: int
    """Groups that the step is short of after the last round."""
    generate_seconds: float
    reward_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Round:
    """What one call of the engine brought."""

    scored: tuple[Scored, ...]
    scores: Scores
    generate_seconds: float
    reward_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Producer:
    """Makes the rollouts of a step."""

    engine: Engine
    functions: Mapping[str, RewardFunction]
    weights: Mapping[str, float]
    """Of each reward function."""
    sampling: Sampling
    num_generations: int
    advantage: AdvantageConfig
    max_failure_rate: float
    reward_timeout: float
    """Seconds that one call of a reward function may take."""
    seed: int
    purpose: str = "train"
    """Part of every completion's key, so that training and evaluation do not draw alike."""

    def make(self, take: Take, count: int) -> RolloutBatch:
        """`count` groups; where some fall outside `filter_range`, up to `max_refills` rounds more to replace them.

        Raises:
            TrainingError: a reward function failed on more than `max_failure_rate` of the step's completions so far,
                or no completion of the step has any reward.
            RewardError: a reward function returned something that is not one number or None per completion.
        """
        rounds = list[_Round]()
        while (missing := _missing(rounds, count)) and len(rounds) <= self.advantage.max_refills:
            rounds.append(self._sample(take(missing)))
            scores = merge_scores([one.scores for one in rounds])
            # of all rounds: a refill may be one prompt, of which one failure is a large share
            check_failure_rate(scores, limit=self.max_failure_rate)
        check_any_reward(scores)
        groups = make_groups(
            [scored for one in rounds for scored in one.scored],
            self.advantage,
            weights=self.weights,
            max_completion_length=self.sampling.max_completion_length,
        )
        return RolloutBatch(
            groups=groups,
            scores=scores,
            refills=len(rounds) - 1,
            missing=_missing(rounds, count),
            generate_seconds=math.fsum(one.generate_seconds for one in rounds),
            reward_seconds=math.fsum(one.reward_seconds for one in rounds),
        )

    def _sample(self, drawn: Sequence[tuple[Task, int]]) -> _Round:
        started = time.perf_counter()
        tasks = [task for task, _ in drawn]
        requests = [self._request(*one) for one in drawn]
        completions = self.engine.generate(requests, self.sampling, on_finished=early_start(self.functions, tasks))
        generated = time.perf_counter()
        repeated = [task for task in tasks for _ in range(self.num_generations)]
        answers = [one for group in completions for one in group]
        scores = score(self.functions, repeated, answers, timeout=self.reward_timeout)
        size = self.num_generations
        scored = (
            self._scored(task, tuple(group), part_of(scores, index * size, size))
            for index, (task, group) in enumerate(zip(tasks, completions, strict=True))
        )
        return _Round(
            scored=tuple(scored),
            scores=scores,
            generate_seconds=generated - started,
            reward_seconds=time.perf_counter() - generated,
        )

    def _scored(self, task: Task, group: tuple[Completion, ...], scores: Scores) -> Scored:
        places = range(len(group))
        failed = tuple(any(at in rows for rows in scores.failed.values()) for at in places)
        notes = ({name: said[at] for name, said in scores.notes.items()} for at in places)
        return Scored(
            task=task,
            completions=group,
            rewards=tuple({name: column[at] for name, column in scores.values.items()} for at in places),
            failed=failed,
            notes=tuple({name: note for name, note in one.items() if note is not None} for one in notes),
            kept=self._is_inside(scores.values, failed),
        )

    def _request(self, task: Task, occurrence: int) -> Request:
        keys = (
            sample_key(self.seed, self.purpose, task.task_id, occurrence, sample)
            for sample in range(self.num_generations)
        )
        return Request(prompt_ids=task.prompt_ids, keys=tuple(keys))

    def _is_inside(self, columns: Mapping[str, Sequence[float | None]], failed: Sequence[bool]) -> bool:
        """Whether a group's mean lies strictly inside `filter_range`; one without a number does not."""
        if self.advantage.filter_range is None:
            return True
        judge = columns[self.advantage.filter_func or next(iter(columns))]
        mean, _ = mean_and_std([None if broken else value for value, broken in zip(judge, failed, strict=True)])
        low, high = self.advantage.filter_range
        return mean is not None and low < mean < high


def _missing(rounds: Sequence[_Round], count: int) -> int:
    return count - sum(scored.kept for one in rounds for scored in one.scored)
