"""A step's groups: tasks in the data order, sampled and scored; filtered ones are sampled again, within bounds."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from paceline.config.objective import AdvantageConfig
from paceline.config.sections import LoopConfig
from paceline.data.rows import task_index
from paceline.data.tasks import LeftOut
from paceline.episodes.conversations import Drawn, ends_without_reward
from paceline.errors import DataError, TrainingError
from paceline.objective.advantages import GroupAdvantage
from paceline.rewards.scoring.scores import check_any_reward, check_failure_rate
from paceline.training.rollouts.grouping import make_groups, without_surplus
from paceline.training.rollouts.rounds import RolloutBatch, RoundSampler, merge_rounds
from paceline.types import RolloutGroup, Task


@dataclass(kw_only=True, slots=True)
class TaskSampler:
    """Hands out tasks in the data order; `position` counts all that were taken, refills and left-out rows included."""

    tasks: Sequence[Task]
    seed: int
    shuffle: bool
    position: int = 0

    def take(self, count: int) -> list[tuple[Task, int]]:
        """Take the next `count` tasks, each with the number of its earlier occurrences.

        Raises:
            DataError: a row of a large dataset stops the run, or a whole pass over it gave no task.
        """
        return [self._next() for _ in range(count)]

    def _next(self) -> tuple[Task, int]:
        size, start = len(self.tasks), self.position
        for at in range(start, start + size):
            self.position = at + 1
            try:
                return self.tasks[task_index(at, size=size, seed=self.seed, shuffle=self.shuffle)], at // size
            except LeftOut as error:
                last = error
        raise DataError(f"none of the {size} rows can be used; the last: {last}")


def prompts_of_step(number: int, loop: LoopConfig, *, num_tasks: int) -> int:
    """Return the number of prompts of step 1, 2, ...: the last step of a run in epochs takes the rest.

    By the number of the step, as refills move the position on by as many tasks as they need.
    """
    if loop.max_steps is not None:
        return loop.prompts_per_step
    left = round(loop.num_epochs * num_tasks) - (number - 1) * loop.prompts_per_step
    return max(1, min(loop.prompts_per_step, left))


Take = Callable[[int], Drawn]
"""The next n tasks of the data order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampler:
    """Makes the rollouts of a step: rounds of sampling and scoring, then groups with advantages."""

    rounds: RoundSampler
    weights: Mapping[str, float]
    """Weight of each reward function."""
    advantage: AdvantageConfig
    max_completion_length: int
    max_failure_rate: float
    own_advantage: GroupAdvantage | None = None
    """The function that `advantage` names, if it is one of the user's own."""
    turn_credit: float | None = None
    """Discount per turn, where turns are credited with rewards of their own."""
    max_turns: int | None = None
    """Turns that a conversation may have, for a sentence; None: any number."""
    needs_reward: bool = True
    """Raise where no completion of a step has any reward."""

    def sample(self, take: Take, count: int) -> RolloutBatch:
        """`count` groups; where some fall outside `filter_range`, up to `max_refills` rounds more to replace them.

        With `oversampling` a round draws more than are missing, and the step takes those inside in the order of their
        tasks: which they are depends neither on their length nor on who was faster.

        Raises:
            TrainingError: a reward function failed on more than `max_failure_rate` of the step's completions so far,
                or no completion of the step has any reward, which `needs_reward` asks for.
            RewardError: a reward function returned something that is not one number or None per completion.
        """
        share = self.advantage.oversampling
        whole, rounds = self.rounds.sample(take(math.ceil(count * share))), 1
        self._check_failures(whole, count)
        while (missing := _missing(whole, count)) and rounds <= self.advantage.max_refills:
            refill = self.rounds.sample(take(math.ceil(missing * share)))
            whole, rounds = merge_rounds([whole, refill], side_by_side=False), rounds + 1
            # of all rounds: a refill may be one prompt, of which one failure is a large share
            self._check_failures(whole, count)
        groups = self._groups(whole, count)
        if self.needs_reward:
            with _keeping(lambda: groups):
                check_any_reward(whole.scores, self._ends(whole))
        return replace(whole, groups=groups, refills=rounds - 1, missing=_missing(whole, count))

    def _groups(self, whole: RolloutBatch, count: int) -> tuple[RolloutGroup, ...]:
        return make_groups(
            without_surplus(whole.groups, count),
            self.advantage,
            weights=self.weights,
            max_completion_length=self.max_completion_length,
            group_advantage=self.own_advantage,
            turn_credit=self.turn_credit,
        )

    def _check_failures(self, whole: RolloutBatch, count: int) -> None:
        with _keeping(lambda: self._groups(whole, count)):
            check_failure_rate(whole.scores, limit=self.max_failure_rate)

    def _ends(self, whole: RolloutBatch) -> tuple[str, Sequence[str]] | None:
        return ends_without_reward(
            [rollout.trajectory for group in whole.groups for rollout in group.rollouts],
            max_completion_length=self.max_completion_length,
            max_turns=self.max_turns,
        )


@contextmanager
def _keeping(groups: Callable[[], tuple[RolloutGroup, ...]]) -> Iterator[None]:
    """Give the error of a step what was sampled for it: the run directory keeps it."""
    try:
        yield
    except TrainingError as error:
        error.kept = groups()
        raise


def _missing(whole: RolloutBatch, count: int) -> int:
    return max(0, count - sum(group.dropped is None for group in whole.groups))
