"""From completions and their scores to groups with advantages. Pure: the same scores give the same groups."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

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
from paceline.types import Rollout, RolloutGroup, Trajectory

OVERLONG = "overlong"
"""The name under which a rollout's rewards hold the soft penalty of its length."""

OUT_OF_THE_STEP = ("filtered", "surplus")
"""Groups dropped for these reasons count in no average; of the others the gradient is zero, their tokens count."""

FunctionRewards = Mapping[str, float | None]


FAILURES = ("reward_failed", "environment_failed")
"""Reasons to drop a rollout on which a reward function or its environment failed, whatever other functions gave."""


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


def without_surplus(groups: Sequence[RolloutGroup], count: int) -> list[RolloutGroup]:
    """Drop those that are inside `filter_range` beyond the first `count`."""
    numbers = itertools.count()
    return [
        replace(group, dropped="surplus") if group.dropped is None and next(numbers) >= count else group
        for group in groups
    ]


def make_groups(
    scored: Sequence[RolloutGroup],
    options: AdvantageConfig,
    *,
    weights: Mapping[str, float],
    max_completion_length: int,
    group_advantage: GroupAdvantage | None = None,
    turn_credit: float | None = None,
) -> tuple[RolloutGroup, ...]:
    """Compare scored rollouts within each group; `weights` is by reward function.

    `group_advantage`: what `advantage` names, if a function.

    `turn_credit`: discount per turn of the rewards that turns get, by which each is credited with what came after it;
    None: all turns of an episode get the advantage of its reward.

    Raises:
        ConfigError: what `group_advantage` returns is not one finite number per completion.
    """
    # what an environment gives weighs as much as it says
    unweighted = {name for group in scored for rollout in group.rollouts for name in rollout.rewards} - set(weights)
    all_weights = {**dict.fromkeys(sorted(unweighted), 1.0), **weights, OVERLONG: 1.0}
    rewards_of_groups = [_with_length(group, options.overlong_share, max_completion_length) for group in scored]
    # none of a completion on which a function failed count, or its zero would be the others' sum
    kept = [
        [
            dict.fromkeys(rewards) if rollout.dropped in FAILURES else rewards
            for rewards, rollout in zip(of_group, group.rollouts, strict=True)
        ]
        for of_group, group in zip(rewards_of_groups, scored, strict=True)
        if group.dropped is None
    ]
    sums = _sums(kept, options, all_weights)
    if group_advantage is not None:
        compared = [own_advantages(totals, group_advantage, options.advantage) for totals in sums]
    else:
        compared = advantages(sums, kind=options.advantage)
    by_turn: Sequence[Sequence[tuple[float, ...]] | None] = [None] * len(kept)
    if turn_credit is not None:
        trajectories = [[rollout.trajectory for rollout in group.rollouts] for group in scored if group.dropped is None]
        earned = [
            [turn_rewards(*rollout, weights=all_weights) for rollout in zip(*group, strict=True)]
            for group in zip(trajectories, kept, sums, strict=True)
        ]
        by_turn = turn_advantages(earned, kind=options.advantage, discount=turn_credit)
    credits = iter(zip(compared, by_turn, strict=True))
    groups = list[RolloutGroup]()
    for group, rewards in zip(scored, rewards_of_groups, strict=True):
        values, of_turns = next(credits) if group.dropped is None else (None, None)
        groups.append(_group(group, rewards, values, of_turns, options, all_weights))
    return tuple(groups)


def turn_rewards(
    trajectory: Trajectory, rewards: FunctionRewards, total: float | None, *, weights: Mapping[str, float]
) -> tuple[float, ...]:
    """Return the reward of each turn; together they are `total`, and what no turn was given counts at the last one.

    Empty for a completion without a reward. What an environment gave for turns weighs as its reward does.
    """
    if total is None:
        return ()
    if trajectory.environment is None or not trajectory.turns:
        return (total,)
    counts = rewards.get(trajectory.environment) is not None
    weight = weights[trajectory.environment] if counts else 0.0
    of_turns = [0.0 if turn.reward is None else weight * turn.reward for turn in trajectory.turns]
    rest = total - math.fsum(of_turns)
    size = abs(total) + math.fsum(map(abs, of_turns))
    return (*of_turns[:-1], of_turns[-1] + (0.0 if abs(rest) <= ROUNDING * size else rest))


def as_changed(sampled: Sequence[RolloutGroup], groups: Sequence[RolloutGroup]) -> tuple[RolloutGroup, ...]:
    """Return a step's groups as a loop of one's own changed them, in the order in which they were sampled.

    Advantages, rewards, notes and `dropped` may change; a group that is not among `groups` counts as filtered. A group
    without signal counts as such, and one that has some now is trained on.

    Raises:
        ConfigError: a group was not sampled in this step, or an advantage is not a finite number.
    """
    if groups is sampled:
        return tuple(sampled)
    changed = {_trajectories_of(group): group for group in groups}
    merged, is_twice = list[RolloutGroup](), len(changed) < len(groups)
    for group in sampled:
        change = changed.get(_trajectories_of(group))
        if change is None:
            merged.append(replace(group, dropped=group.dropped or "filtered"))
            continue
        if change.task is not group.task:
            break
        changed.pop(_trajectories_of(group))
        change = _recredited(change, group)
        reason = change.dropped
        if reason is None or reason == "zero_deviation":
            trained = [_rollout_advantages(rollout) for rollout in change.rollouts if rollout.dropped is None]
            reason = None if any(map(carries_signal, trained)) else "zero_deviation"
        elif reason not in OUT_OF_THE_STEP and reason != group.dropped:
            reason = "filtered"  # left out by the program, whatever it calls its reason
        merged.append(replace(change, dropped=reason))
    if changed or is_twice:
        strange = next(iter(changed.values()), groups[0])
        raise ConfigError(
            f"update must get groups of the same step's sample(), each once and with its completions, got one of task "
            f"{strange.task.task_id}; change a group by dataclasses.replace"
        )
    return tuple(merged)


def _rollout_advantages(rollout: Rollout) -> tuple[float, ...]:
    """Return the advantages of a completion's turns, or the one that all have."""
    return (rollout.advantage,) if rollout.turn_advantages is None else rollout.turn_advantages


def _recredited(changed: RolloutGroup, sampled: RolloutGroup) -> RolloutGroup:
    """Check the advantages of a group; one of a whole completion takes the place of its turns', if those are as before.

    Raises:
        ConfigError: an advantage is not a finite number, or there is not one for each turn.
    """
    rollouts = list[Rollout]()
    for rollout, before in zip(changed.rollouts, sampled.rollouts, strict=True):
        of_turns, turns = rollout.turn_advantages, len(rollout.trajectory.turns)
        if of_turns is not None and of_turns == before.turn_advantages and rollout.advantage != before.advantage:
            of_turns = None
        if of_turns is not None and len(of_turns) != turns:
            raise ConfigError(
                f"turn_advantages must have one number for each of the {turns} turns of an episode, got {of_turns} for "
                f"task {changed.task.task_id}; give None to credit all turns with the advantage"
            )
        rollouts.append(replace(rollout, turn_advantages=of_turns))
    values = [value for rollout in rollouts for value in _rollout_advantages(rollout)]
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        raise ConfigError(
            f"every advantage must be a finite number, got {values} for task {changed.task.task_id}; give 0.0 to a "
            "rollout that is not to be trained on"
        )
    return replace(changed, rollouts=tuple(rollouts))


def _trajectories_of(group: RolloutGroup) -> tuple[int, ...]:
    return tuple(id(rollout.trajectory) for rollout in group.rollouts)


def _with_length(scored: RolloutGroup, share: float, max_length: int) -> list[FunctionRewards]:
    """Add the length penalty to rewards that are there: alone it would reward a broken grader.

    The length is of sampled tokens: what an environment wrote costs a completion nothing.
    """
    buffer = overlong_buffer(share, max_length=max_length) if share else 0
    with_length = list[FunctionRewards]()
    for rollout in scored.rollouts:
        rewards = rollout.rewards
        if buffer and any(reward is not None for reward in rewards.values()):
            penalty = overlong_penalty(rollout.trajectory.num_sampled, max_length=max_length, buffer=buffer)
            rewards = {**rewards, OVERLONG: penalty}
        with_length.append(rewards)
    return with_length


def _sums(
    groups: Sequence[Sequence[FunctionRewards]], options: AdvantageConfig, weights: Mapping[str, float]
) -> list[list[float | None]]:
    """Combine each completion's rewards into the number that is compared."""
    if options.reward_aggregation == "sum_then_normalize":
        sizes = {name: abs(weight) for name, weight in weights.items()}
        unsigned = [
            [{name: None if value is None else abs(value) for name, value in rewards.items()} for rewards in group]
            for group in groups
        ]
        return without_rounding(
            [[combine(rewards, weights) for rewards in group] for group in groups],
            [[combine(rewards, sizes) for rewards in group] for group in unsigned],
        )
    names = dict.fromkeys(name for group in groups for rewards in group for name in rewards)
    by_name = [{name: [rewards.get(name) for rewards in group] for name in names} for group in groups]
    return normalized_sums(by_name, weights)


def _group(
    scored: RolloutGroup,
    rewards: Sequence[FunctionRewards],
    group_advantages: Sequence[float] | None,
    by_turn: Sequence[tuple[float, ...]] | None,
    options: AdvantageConfig,
    weights: Mapping[str, float],
) -> RolloutGroup:
    rollouts = []
    for index, (by_function, advantage) in enumerate(
        zip(rewards, group_advantages or [0.0] * len(rewards), strict=True)
    ):
        rollout, of_turns = scored.rollouts[index], None if by_turn is None else by_turn[index]
        dropped, reward = rollout.dropped, None
        if dropped not in FAILURES:
            reward = combine(by_function, weights)
            dropped = "no_reward" if reward is None else None
            if options.mask_truncated and rollout.trajectory.finish_reason == "length":
                dropped = "truncated"  # also without a reward: averages over all count an ungraded one with its tokens
        if of_turns and not rollout.trajectory.turns:
            (advantage,), of_turns = of_turns, None  # it is all of its turns
        rollouts.append(
            Rollout(
                trajectory=rollout.trajectory,
                rewards=by_function,
                reward=reward,
                advantage=0.0 if dropped else advantage,
                turn_advantages=None if dropped else of_turns,
                dropped=dropped,
                notes=rollout.notes,
            )
        )
    # by the advantages before any is masked: a group whose signal is masked has rewards that differ
    reason = "truncated" if all(rollout.dropped for rollout in rollouts) else None
    if group_advantages is None:
        reason = scored.dropped
    elif all(rollout.reward is None for rollout in rollouts):
        reason = "no_reward"
    elif not any(map(carries_signal, [group_advantages] if by_turn is None else by_turn)):
        reason = "zero_deviation"
    return RolloutGroup(task=scored.task, rollouts=tuple(rollouts), dropped=reason)
