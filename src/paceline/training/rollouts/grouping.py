"""From completions and their scores to groups with advantages. Pure: the same scores give the same groups."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from paceline.config.objective import AdvantageConfig
from paceline.errors import ConfigError
from paceline.metrics.statistics import mean_and_std
from paceline.objective.advantages import (
    ROUNDING,
    GroupAdvantage,
    advantages,
    carries_signal,
    normalized_sums,
    overlong_buffer,
    overlong_penalty,
    own_advantages,
    turn_advantages,
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
    """True for each completion on which a reward function or its environment failed: what others gave is no reward
    then."""
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
    # without a function, environments judge their own tasks: a group has numbers of one of them
    judges = columns.values() if options.filter_func is None else [columns[options.filter_func]]
    judge = next((values for values in judges if any(value is not None for value in values)), ())
    if not judge:
        return False
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
    turn_credit: float | None = None,
) -> tuple[RolloutGroup, ...]:
    """One group per task, in order; `weights` is by reward function. `own`: what `advantage` names, if a function.

    `turn_credit`: discount per turn of the rewards that turns get, by which each is credited with what came after it;
    None: all turns of an episode get the advantage of its reward.

    Raises:
        ConfigError: what `own` returns is not one finite number per completion.
    """
    # what an environment gives weighs as much as it says
    own_rewards = {name: 1.0 for one in scored for given in one.rewards for name in given if name not in weights}
    all_weights = {**own_rewards, **weights, OVERLONG: 1.0}
    rewards = [_with_length(one, options.overlong_share, max_completion_length) for one in scored]
    # none of a completion on which a function failed count, or its zero would be the others' sum
    kept = [
        [dict.fromkeys(its) if broken else its for its, broken in zip(group, one.failed, strict=True)]
        for group, one in zip(rewards, scored, strict=True)
        if one.left_out is None
    ]
    sums = _sums(kept, options, all_weights)
    if own is not None:
        compared = [own_advantages(totals, own, options.advantage) for totals in sums]
    else:
        compared = advantages(sums, kind=options.advantage)
    by_turn: Sequence[Sequence[tuple[float, ...]] | None] = [None] * len(kept)
    if turn_credit is not None:
        completions = [one.completions for one in scored if one.left_out is None]
        earned = [
            [turn_rewards(*one, weights=all_weights) for one in zip(*group, strict=True)]
            for group in zip(completions, kept, sums, strict=True)
        ]
        by_turn = turn_advantages(earned, kind=options.advantage, discount=turn_credit)
    found = iter(zip(compared, by_turn, strict=True))
    groups = list[RolloutGroup]()
    for one, its in zip(scored, rewards, strict=True):
        values, credit = next(found) if one.left_out is None else (None, None)
        groups.append(_group(one, its, values, credit, options, all_weights))
    return tuple(groups)


def turn_rewards(
    completion: Completion, rewards: FunctionRewards, total: float | None, *, weights: Mapping[str, float]
) -> tuple[float, ...]:
    """Return the reward of each turn; together they are `total`, and what no turn was given counts at the last one.

    Empty for a completion without a reward. What an environment gave for turns weighs as its reward does.
    """
    if total is None:
        return ()
    episode = completion.episode
    if episode is None or not episode.turns:
        return (total,)
    counts = rewards.get(episode.environment) is not None
    weight = weights[episode.environment] if counts else 0.0
    given = [0.0 if turn.reward is None else weight * turn.reward for turn in episode.turns]
    rest = total - math.fsum(given)
    size = abs(total) + math.fsum(map(abs, given))
    return (*given[:-1], given[-1] + (0.0 if abs(rest) <= ROUNDING * size else rest))


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
        one = _recredited(one, group)
        reason = one.dropped
        if reason is None or reason == "zero_deviation":
            trained = [_rollout_advantages(rollout) for rollout in one.rollouts if rollout.dropped is None]
            reason = None if any(map(carries_signal, trained)) else "zero_deviation"
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


def _rollout_advantages(rollout: Rollout) -> tuple[float, ...]:
    """Return the advantages of a completion's turns, or the one that all have."""
    return (rollout.advantage,) if rollout.turn_advantages is None else rollout.turn_advantages


def _recredited(changed: RolloutGroup, sampled: RolloutGroup) -> RolloutGroup:
    """Check the advantages of a group; one of a whole completion takes the place of its turns', if those are as before.

    Raises:
        ConfigError: an advantage is not a finite number, or there is not one for each turn.
    """
    rollouts = list[Rollout]()
    for one, before in zip(changed.rollouts, sampled.rollouts, strict=True):
        of_turns, episode = one.turn_advantages, one.completion.episode
        if of_turns is not None and of_turns == before.turn_advantages and one.advantage != before.advantage:
            of_turns = None
        turns = 0 if episode is None else len(episode.turns)
        if of_turns is not None and len(of_turns) != turns:
            raise ConfigError(
                f"turn_advantages must have one number for each of the {turns} turns of an episode, got {of_turns} for "
                f"task {changed.task.task_id}; give None to credit all turns with the advantage"
            )
        rollouts.append(replace(one, turn_advantages=of_turns))
    given = [value for rollout in rollouts for value in _rollout_advantages(rollout)]
    if not all(isinstance(advantage, int | float) and math.isfinite(advantage) for advantage in given):
        raise ConfigError(
            f"every advantage must be a finite number, got {given} for task {changed.task.task_id}; give 0.0 to a "
            "rollout that is not to be trained on"
        )
    return replace(changed, rollouts=tuple(rollouts))


def _completions_of(group: RolloutGroup) -> tuple[int, ...]:
    return tuple(id(rollout.completion) for rollout in group.rollouts)


def _with_length(scored: ScoredGroup, share: float, max_length: int) -> list[FunctionRewards]:
    """Add the length penalty to rewards that are there: alone it would reward a broken grader.

    The length is of sampled tokens: what an environment wrote costs a completion nothing.
    """
    buffer = overlong_buffer(share, max_length=max_length) if share else 0
    found = list(scored.rewards)
    for at, (rewards, completion) in enumerate(zip(scored.rewards, scored.completions, strict=True)):
        if buffer and any(reward is not None for reward in rewards.values()):
            penalty = overlong_penalty(completion.num_sampled, max_length=max_length, buffer=buffer)
            found[at] = {**rewards, OVERLONG: penalty}
    return found


def _sums(
    groups: Sequence[Sequence[FunctionRewards]], options: AdvantageConfig, weights: Mapping[str, float]
) -> list[list[float | None]]:
    """Combine each completion's rewards into the number that is compared."""
    if options.reward_aggregation == "sum_then_normalize":
        sizes = {name: abs(weight) for name, weight in weights.items()}
        unsigned = [
            [{name: None if value is None else abs(value) for name, value in one.items()} for one in group]
            for group in groups
        ]
        return without_rounding(
            [[combine(rewards, weights) for rewards in group] for group in groups],
            [[combine(rewards, sizes) for rewards in group] for group in unsigned],
        )
    names = {name: None for group in groups for one in group for name in one}
    by_name = [{name: [one.get(name) for one in group] for name in names} for group in groups]
    return normalized_sums(by_name, weights)


def _group(
    scored: ScoredGroup,
    rewards: Sequence[FunctionRewards],
    group_advantages: Sequence[float] | None,
    by_turn: Sequence[tuple[float, ...]] | None,
    options: AdvantageConfig,
    weights: Mapping[str, float],
) -> RolloutGroup:
    rollouts = []
    for at, (one, advantage) in enumerate(zip(rewards, group_advantages or [0.0] * len(rewards), strict=True)):
        completion, of_turns = scored.completions[at], None if by_turn is None else by_turn[at]
        episode = completion.episode
        reward = None if scored.failed[at] else combine(one, weights)
        dropped = "no_reward" if reward is None else None
        if scored.failed[at]:
            broken = episode is not None and episode.failure is not None
            dropped = "environment_failed" if broken else "reward_failed"
        elif options.mask_truncated and completion.finish_reason == "length":
            dropped = "truncated"  # also without a reward: averages over all count an ungraded one with its tokens
        if of_turns and not (episode and episode.turns):
            (advantage,), of_turns = of_turns, None  # it is all of its turns
        rollouts.append(
            Rollout(
                completion=completion,
                rewards=one,
                reward=reward,
                advantage=0.0 if dropped else advantage,
                turn_advantages=None if dropped else of_turns,
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
    elif not any(map(carries_signal, [group_advantages] if by_turn is None else by_turn)):
        reason = "zero_deviation"
    return RolloutGroup(task=scored.task, rollouts=tuple(rollouts), dropped=reason)
