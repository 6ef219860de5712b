"""The rollouts of a step under other options: the same completions and rewards, grouped again."""

from collections.abc import Mapping
from dataclasses import replace

from paceline.config.objective import AdvantageConfig
from paceline.training.rollouts.grouping import OVERLONG, Scored, is_inside, make_groups, without_surplus
from paceline.training.rollouts.sampler import RolloutBatch
from paceline.types import RolloutGroup

LEFT_OUT = ("filtered", "surplus")


def regrouped(
    batch: RolloutBatch, options: AdvantageConfig, *, weights: Mapping[str, float], max_completion_length: int
) -> RolloutBatch:
    """What the producer would have made of the same scores; `weights` is by reward function.

    Groups that these options filter cannot be replaced, as nothing is sampled: then more are `missing`.
    """
    wanted = batch.missing + sum(group.dropped not in LEFT_OUT for group in batch.groups)
    scored = without_surplus([_scored(group, options) for group in batch.groups], wanted)
    groups = make_groups(scored, options, weights=weights, max_completion_length=max_completion_length)
    return replace(batch, groups=groups, missing=max(0, wanted - sum(one.left_out is None for one in scored)))


def _scored(group: RolloutGroup, options: AdvantageConfig) -> Scored:
    rewards = tuple(
        {name: value for name, value in rollout.rewards.items() if name != OVERLONG} for rollout in group.rollouts
    )
    failed = tuple(rollout.dropped == "reward_failed" for rollout in group.rollouts)
    columns = {name: [one[name] for one in rewards] for name in rewards[0]}
    return Scored(
        task=group.task,
        completions=tuple(rollout.completion for rollout in group.rollouts),
        rewards=rewards,
        failed=failed,
        notes=tuple(rollout.notes for rollout in group.rollouts),
        left_out=None if is_inside(columns, failed, options) else "filtered",
    )
