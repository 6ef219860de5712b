"""From completions and their scores to groups with advantages. Pure: the same scores give the same groups."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from paceline.config.objective import AdvantageConfig
from paceline.errors import ConfigError
from paceline.metrics.statistics import mean_and_std
from paceline.objective.advantages import (
    AdvantageKind,
    GroupAdvantage,
    advantages,
    carries_signal,
    normalized_sums,
    overlong_buffer,
    overlong_penalty,
    own_advantages,
    without_rounding,
)
from paceline.rewards.scoring.scores import combine
from paceline.types import Completion, Rollout, RolloutGroup, Task

OVERLONG = "overlong"
"""The name under which a rollout's rewards hold the soft penalty of its length."""

OUT_OF_THE_STEP = ("filtered", "surplus")
"""Groups dropped for these reasons count in no average; of the others the gradient is zero, their tokens count."""

FunctionRewards = Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredGroup:
    """One task's completions with what each reward function gave them."""

    task: Task
    completions: tuple[Completion, ...]
    rewards: tuple[FunctionRewards, ...]
    failed: tuple[bool, ...]
    """True for each completion on which a reward function failed: what the others gave is no reward then."""
    notes: tuple[Mapping[str, str], ...]
    """Notes on each completion, by the reward function that made them."""
    left_out: Literal["filtered", "surplus"] | None
    """Why the group takes no part in anything: outside `filter_range`, or inside when the step was full."""


def is_inside(columns: Mapping[str, Sequence[float | None]], failed: Sequence[bool], options: AdvantageConfig) -> bool:
    """Return True if a group's mean lies strictly inside `filter_range`; one without a number does not.

    `columns` has, by reward function, what it gave to each completion of the group.
    """
    if options.filter_range is None:
        return True
    judge = columns[options.filter_func or next(iter(columns))]
    mean, _ = mean_and_std([None if broken else value for value, broken in zip(judge, failed, strict=True)])
    low, high = options.filter_range
    return mean is not None and low < mean < high


def without_surplus(scored: Sequence[ScoredGroup], count: int) -> list[ScoredGroup]:
    """The first `count` that are inside stay so."""
    places = itertools.count()
    return [
        replace(one, left_out="surplus") if one.left_out is None and next(places) >= count else one for one in scored
    ]


def make_groups(
    scored: Sequence[ScoredGroup],
    options: AdvantageConfig,
    *,
    weights: Mapping[str, float],
    max_completion_length: int,
    own: GroupAdvantage | None = None,
) -> tuple[RolloutGroup, ...]:
    """One group per task, in order; `weights` is by reward function. `own`: what `advantage` names, if a function.

    Raises:
        ConfigError: what `own` returns is not one finite number per completion.
    """
    all_weights = {**weights, OVERLONG: 1.0}
    rewards = [_with_length(one, options.overlong_share, max_completion_length) for one in scored]
    # none of a completion on which a function failed count, or its zero would be the others' sum
    kept = [
        [dict.fromkeys(its) if broken else its for its, broken in zip(group, one.failed, strict=True)]
        for group, one in zip(rewards, scored, strict=True)
        if one.left_out is None
    ]
    step_advantages = iter(_advantages(kept, options, all_weights, own))
    return tuple(
        _group(one, group, next(step_advantages) if one.left_out is None else None, options, all_weights)
        for one, group in zip(scored, rewards, strict=True)
    )


def as_changed(sampled: Sequence[RolloutGroup], groups: Sequence[RolloutGroup]) -> tuple[RolloutGroup, ...]:
    """Return a step's groups as a loop of one's own changed them, in the order in which they were sampled.

    Advantages, rewards, notes and `dropped` may change; a group that is not among `groups` counts as filtered. A group
    without signal counts as such, and one that has some now is trained on.

    Raises:
        ConfigError: a group was not sampled in this step, or an advantage is not a finite number.
    """
    if groups is sampled:
        return tuple(sampled)
    changed = {_completions_of(group): group for group in groups}
    found, is_twice = [], len(changed) < len(groups)
    for group in sampled:
        one = changed.get(_completions_of(group))
        if one is None:
            found.append(replace(group, dropped=group.dropped or "filtered"))
            continue
        if one.task is not group.task:
            break
        changed.pop(_completions_of(group))
        given = [rollout.advantage for rollout in one.rollouts]
        if not all(isinstance(advantage, int | float) and math.isfinite(advantage) for advantage in given):
            raise ConfigError(
                f"every advantage must be a finite number, got {given} for task {one.task.task_id}; give 0.0 to a "
                "rollout that is not to be trained on"
            )
        reason = one.dropped
        if reason is None or reason == "zero_deviation":
            trained = [rollout.advantage for rollout in one.rollouts if rollout.dropped is None]
            reason = None if carries_signal(trained) else "zero_deviation"
        elif reason not in OUT_OF_THE_STEP and reason != group.dropped:
            reason = "filtered"  # left out by the program, whatever it calls its reason
        found.append(replace(one, dropped=reason))
    if changed or is_twice:
        strange = next(iter(changed.values()), groups[0])
        raise ConfigError(
            f"update must get groups of the same step's sample(), each once and with its completions, got one of task "
            f"{strange.task.task_id}; change a group by dataclasses.replace"
        )
    return tuple(found)


def _completions_of(group: RolloutGroup) -> tuple[int, ...]:
    return tuple(id(rollout.completion) for rollout in group.rollouts)


def _with_length(scored: ScoredGroup, share: float, max_length: int) -> list[FunctionRewards]:
    """Add the length penalty to rewards that are there: alone it would reward a broken grader."""
    buffer = overlong_buffer(share, max_length=max_length) if share else 0
    found = list(scored.rewards)
    for at, (rewards, completion) in enumerate(zip(scored.rewards, scored.completions, strict=True)):
        if buffer and any(reward is not None for reward in rewards.values()):
            penalty = overlong_penalty(len(completion.token_ids), max_length=max_length, buffer=buffer)
            found[at] = {**rewards, OVERLONG: penalty}
    return found


def _advantages(
    groups: Sequence[Sequence[FunctionRewards]],
    options: AdvantageConfig,
    weights: Mapping[str, float],
    own: GroupAdvantage | None,
) -> list[list[float]]:
    if options.reward_aggregation == "sum_then_normalize":
        sizes = {name: abs(weight) for name, weight in weights.items()}
        unsigned = [
            [{name: None if value is None else abs(value) for name, value in one.items()} for one in group]
            for group in groups
        ]
        sums = without_rounding(
            [[combine(rewards, weights) for rewards in group] for group in groups],
            [[combine(rewards, sizes) for rewards in group] for group in unsigned],
        )
    else:
        names = {name: None for group in groups for one in group for name in one}
        by_name = [{name: [one.get(name) for one in group] for name in names} for group in groups]
        sums = normalized_sums(by_name, weights)
    if own is not None:
        return [own_advantages(rewards, own, options.advantage) for rewards in sums]
    return advantages(sums, kind=cast(AdvantageKind, options.advantage))


def _group(
    scored: ScoredGroup,
    rewards: Sequence[FunctionRewards],
    group_advantages: Sequence[float] | None,
    options: AdvantageConfig,
    weights: Mapping[str, float],
) -> RolloutGroup:
    rollouts = []
    for at, (one, advantage) in enumerate(zip(rewards, group_advantages or [0.0] * len(rewards), strict=True)):
        reward = None if scored.failed[at] else combine(one, weights)
        dropped = "no_reward" if reward is None else None
        if scored.failed[at]:
            dropped = "reward_failed"
        elif options.mask_truncated and scored.completions[at].finish_reason == "length":
            dropped = "truncated"  # also without a reward: averages over all count an ungraded one with its tokens
        rollouts.append(
            Rollout(
                completion=scored.completions[at],
                rewards=one,
                reward=reward,
                advantage=0.0 if dropped else advantage,
                dropped=dropped,
                notes=scored.notes[at],
            )
        )
    # by the advantages before any is masked: a group whose signal is masked has rewards that differ
    reason = "truncated" if all(rollout.dropped for rollout in rollouts) else None
    if group_advantages is None:
        reason = scored.left_out
    elif all(rollout.reward is None for rollout in rollouts):
        reason = "no_reward"
    elif not carries_signal(group_advantages):
        reason = "zero_deviation"
    return RolloutGroup(task=scored.task, rollouts=tuple(rollouts), dropped=reason)
