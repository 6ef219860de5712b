"""The producer half: takes tasks, asks an engine for completions, scores them, computes advantages, marks groups.

Knows no process, file or loop. Every completion comes out again, in a group, with its reward or the reason for none.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.advantages import AdvantageKind, advantages, carries_signal
from paceline.engines import Engine, Request, Sampling, sample_key
from paceline.rewards import RewardFunction, Scores, check_failure_rate, combine, score
from paceline.types import Completion, Rollout, RolloutGroup, Task


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutBatch:
    """All groups of a step and what they cost."""

    groups: tuple[RolloutGroup, ...]
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
    advantage: AdvantageKind
    max_failure_rate: float
    seed: int

    def make(self, tasks: Sequence[Task], *, occurrences: Sequence[int]) -> RolloutBatch:
        """One group per task; `occurrences` counts how often each task came before, so that it draws anew.

        Raises:
            TrainingError: a reward function failed on more than `max_failure_rate` of the completions.
            RewardError: a reward function returned something that is not one number or None per completion.
        """
        started = time.perf_counter()
        requests = [self._request(task, occurrence) for task, occurrence in zip(tasks, occurrences, strict=True)]
        completions = self.engine.generate(requests, self.sampling)
        generated = time.perf_counter()
        repeated = [task for task in tasks for _ in range(self.num_generations)]
        scores = score(self.functions, repeated, [one for group in completions for one in group])
        check_failure_rate(scores, limit=self.max_failure_rate)
        groups = self._groups(tasks, completions, scores)
        return RolloutBatch(
            groups=groups,
            scores=scores,
            generate_seconds=generated - started,
            reward_seconds=time.perf_counter() - generated,
        )

    def _request(self, task: Task, occurrence: int) -> Request:
        keys = (
            sample_key(self.seed, "train", task.task_id, occurrence, sample) for sample in range(self.num_generations)
        )
        return Request(prompt_ids=task.prompt_ids, keys=tuple(keys))

    def _groups(
        self, tasks: Sequence[Task], completions: Sequence[Sequence[Completion]], scores: Scores
    ) -> tuple[RolloutGroup, ...]:
        size = self.num_generations
        by_function = [
            {name: values[index] for name, values in scores.values.items()} for index in range(len(tasks) * size)
        ]
        rewards = [combine(values, self.weights) for values in by_function]
        cut = range(0, len(rewards), size)
        step_advantages = advantages([rewards[start : start + size] for start in cut], kind=self.advantage)
        return tuple(
            RolloutGroup(
                task=task,
                rollouts=tuple(
                    Rollout(
                        completion=completion,
                        rewards=by_function[start + sample],
                        reward=rewards[start + sample],
                        advantage=group_advantages[sample],
                    )
                    for sample, completion in enumerate(group)
                ),
                dropped=_why_dropped(rewards[start : start + size], group_advantages),
            )
            for task, group, group_advantages, start in zip(tasks, completions, step_advantages, cut, strict=True)
        )


def _why_dropped(rewards: Sequence[float | None], group_advantages: Sequence[float]) -> str | None:
    if all(reward is None for reward in rewards):
        return "no_reward"
    return None if carries_signal(group_advantages) else "zero_deviation"


def rollout_metrics(batch: RolloutBatch) -> dict[str, object]:
    """The step's numbers that rollouts alone decide; names and units are those of `metrics.METRICS`."""
    rollouts = [rollout for group in batch.groups for rollout in group.rollouts]
    lengths = [len(rollout.completion.token_ids) for rollout in rollouts]
    mean, std = _mean_and_std([rollout.reward for rollout in rollouts])
    return {
        "prompts": len(batch.groups),
        "rollouts": len(rollouts),
        "reward_mean": mean,
        "reward_std": std,
        "rewards": {name: _function_metrics(batch.scores, name) for name in batch.scores.values},
        "completion_length_mean": sum(lengths) / len(lengths),
        "completion_length_max": max(lengths),
        "truncated_fraction": sum(r.completion.finish_reason == "length" for r in rollouts) / len(rollouts),
        "groups_zero_deviation": sum(group.dropped == "zero_deviation" for group in batch.groups),
        "groups_no_reward": sum(group.dropped == "no_reward" for group in batch.groups),
        "rollouts_without_reward": sum(rollout.reward is None for rollout in rollouts),
        "tokens_generated": sum(lengths),
    }


def rollout_records(groups: Sequence[RolloutGroup]) -> list[dict[str, object]]:
    """One object per rollout for the run directory: whoever reads it needs nothing else."""
    return [
        {
            "task_id": group.task.task_id,
            "sample": sample,
            "prompt": group.task.prompt,
            "answer": group.task.answer,
            "completion": rollout.completion.text,
            "prompt_tokens": len(group.task.prompt_ids),
            "completion_tokens": len(rollout.completion.token_ids),
            "rewards": dict(rollout.rewards),
            "reward": rollout.reward,
            "advantage": rollout.advantage,
            "finish_reason": rollout.completion.finish_reason,
            "policy_version": rollout.completion.policy_version,
            "dropped": group.dropped if rollout.reward is not None else "no_reward",
        }
        for group in groups
        for sample, rollout in enumerate(group.rollouts)
    ]


def _function_metrics(scores: Scores, name: str) -> dict[str, float | int | None]:
    mean, std = _mean_and_std(scores.values[name])
    return {"mean": mean, "std": std, "failures": len(scores.failed[name]), "seconds": scores.seconds[name]}


def _mean_and_std(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Over the values that are there; the sample deviation needs two."""
    given = [value for value in values if value is not None]
    if not given:
        return None, None
    mean = math.fsum(given) / len(given)
    if len(given) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in given) / (len(given) - 1))
