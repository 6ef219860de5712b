"""One round of sampling and scoring: tasks to completions with what each reward function gave them.

Behind `RoundSampler` one engine does it here, or several do it elsewhere, each for a share of the tasks.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from typing_extensions import override

from paceline.config.objective import AdvantageConfig
from paceline.engines import Engine, Sampling
from paceline.episodes.conversations import Completed, Completer, Conversations, Drawn, Draws
from paceline.episodes.driver import complete
from paceline.rewards.function import RewardFunction
from paceline.rewards.scoring.calling import early_start
from paceline.rewards.scoring.scores import Scores, merge_scores, part_of, score, with_environments
from paceline.training.rollouts.grouping import is_inside
from paceline.types import Rollout, RolloutGroup, Task, Trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightTransfer:
    """Cost of sending a step's weights to the samplers."""

    seconds: float
    nbytes: int
    """Bytes that each sampler received; 0 where weights are shared, or were there already."""

    def __add__(self, other: "WeightTransfer") -> "WeightTransfer":
        return WeightTransfer(seconds=self.seconds + other.seconds, nbytes=self.nbytes + other.nbytes)


NO_TRANSFER = WeightTransfer(seconds=0.0, nbytes=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutBatch:
    """Groups of rollouts and what they cost: of one round of sampling, or of all rounds of a step."""

    groups: tuple[RolloutGroup, ...]
    """Groups in the order of the tasks, dropped ones among them; those of a round have no advantages yet."""
    scores: Scores
    """Scores of all rollouts, group after group."""
    refills: int = 0
    """Further rounds of sampling that replaced filtered groups."""
    missing: int = 0
    """Groups that the step is short of after the last round."""
    generate_seconds: float
    reward_seconds: float
    position: int = 0
    """Position in the data order after the step; 0 for a round."""
    seconds: float = 0.0
    """Wall seconds from the start of the step's weight transfer to its finished groups; 0 for a round."""
    transfer: WeightTransfer = NO_TRANSFER


class RoundSampler(Protocol):
    """Completes and scores tasks. What comes back does not depend on how the tasks are shared out."""

    def sample(self, drawn: Drawn) -> RolloutBatch:
        """`num_generations` completions of each task, scored; raises what scoring raises."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSampler(RoundSampler):
    """A `RoundSampler` on one engine, with the reward functions in this process."""

    engine: Engine
    functions: Mapping[str, RewardFunction]
    sampling: Sampling
    num_generations: int
    advantage: AdvantageConfig
    """Options of the comparison; `filter_range` and `filter_func` decide which groups are kept."""
    reward_timeout: float
    """Seconds that one call of a reward function may take."""
    seed: int
    purpose: str = "train"
    """Part of every completion's key, so that training and evaluation do not draw alike."""
    conversations: Conversations | None = None
    """How conversations are held; None: every completion has one turn."""
    completer: Completer | None = None
    """What completes tasks in the place of the engine; None: the engine does."""

    @override
    def sample(self, drawn: Drawn) -> RolloutBatch:
        started, size = time.perf_counter(), self.num_generations
        completed = self._complete(drawn)
        generated = time.perf_counter()
        scores = score_completed(self.functions, completed, self.conversations, timeout=self.reward_timeout)
        groups = (
            self._scored(group.task, group.trajectories, part_of(scores, index * size, size))
            for index, group in enumerate(completed)
        )
        return RolloutBatch(
            groups=tuple(groups),
            scores=scores,
            generate_seconds=generated - started,
            reward_seconds=time.perf_counter() - generated,
        )

    def _complete(self, drawn: Drawn) -> list[Completed]:
        if self.completer is not None:
            return self.completer(self.engine, drawn, num_generations=self.num_generations, purpose=self.purpose)
        early = early_start(self.functions, [task for task, _ in drawn])
        draws = Draws(seed=self.seed, purpose=self.purpose, num_generations=self.num_generations)
        return complete(self.engine, drawn, self.sampling, draws, self.conversations, early)

    def _scored(self, task: Task, group: tuple[Trajectory, ...], scores: Scores) -> RolloutGroup:
        failed = tuple(
            trajectory.failure is not None or any(index in rows for rows in scores.failed.values())
            for index, trajectory in enumerate(group)
        )
        rollouts = list[Rollout]()
        for index, trajectory in enumerate(group):
            notes = {name: column[index] for name, column in scores.notes.items()}
            reason = "reward_failed" if trajectory.failure is None else "environment_failed"
            rollouts.append(
                Rollout(
                    trajectory=trajectory,
                    rewards={name: column[index] for name, column in scores.values.items()},
                    reward=None,
                    advantage=0.0,
                    dropped=reason if failed[index] else None,
                    notes={name: note for name, note in notes.items() if note is not None},
                )
            )
        dropped = None if is_inside(scores.values, failed, self.advantage) else "filtered"
        return RolloutGroup(task=task, rollouts=tuple(rollouts), dropped=dropped)


def score_completed(
    functions: Mapping[str, RewardFunction],
    completed: Sequence[Completed],
    conversations: Conversations | None,
    *,
    timeout: float,
) -> Scores:
    """Score all completions, task after task, with columns for what environments gave; raises as `score` does."""
    trajectories = [trajectory for group in completed for trajectory in group.trajectories]
    scores = score(
        functions,
        [task for group in completed for task in group.tasks],
        trajectories,
        timeout=timeout,
        environments=[environment for group in completed for environment in group.environments],
    )
    return scores if conversations is None else with_environments(scores, conversations.names, trajectories)


def merge_rounds(parts: Sequence[RolloutBatch], *, side_by_side: bool) -> RolloutBatch:
    """One round of several: seconds add up, or the longest counts where they ran `side_by_side`."""
    seconds = max if side_by_side else math.fsum
    return RolloutBatch(
        groups=tuple(group for part in parts for group in part.groups),
        scores=merge_scores([part.scores for part in parts]),
        generate_seconds=seconds([part.generate_seconds for part in parts]),
        reward_seconds=seconds([part.reward_seconds for part in parts]),
    )
