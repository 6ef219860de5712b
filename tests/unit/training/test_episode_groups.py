"""Groups of episodes: one number each is compared, however many turns and rows it has; a failure is no number."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from paceline.config.objective import AdvantageConfig
from paceline.errors import ConfigError
from paceline.training.learner.samples import samples_of
from paceline.training.rollouts.grouping import as_changed, is_inside, make_groups, turn_rewards
from paceline.training.rollouts.records import rollout_metrics
from paceline.types import Rollout, RolloutGroup, Trajectory
from tests.support.episodes import conversation
from tests.support.scripted import completion, scripted_sampler, taking, task, trajectory

WEIGHTS = {"world": 1.0, "right": 1.0}


def turns(count: int, *rewards: float | None) -> Trajectory:
    """An episode of so many turns of two sampled and three observed tokens."""
    parts = [("ab", "xyz")] * (count - 1) + [("cd", "")]
    return conversation(*parts, rewards=rewards or None, reward=sum(one or 0.0 for one in rewards))


def scored(
    *trajectories: Trajectory, rewards: Sequence[dict[str, float | None]], failed: Sequence[int] = ()
) -> RolloutGroup:
    rollouts = list[Rollout]()
    for at, (one, values) in enumerate(zip(trajectories, rewards, strict=True)):
        reason = "reward_failed" if one.failure is None else "environment_failed"
        dropped = reason if at in failed else None
        rollouts.append(Rollout(trajectory=one, rewards=values, reward=None, advantage=0.0, dropped=dropped))
    return RolloutGroup(task=task("0"), rollouts=tuple(rollouts))


def grouped(one: RolloutGroup, *, turn_credit: float | None = None, weights=WEIGHTS, **options: object) -> RolloutGroup:
    config = AdvantageConfig(**{"advantage": "none", **options})
    return make_groups([one], config, weights=weights, max_completion_length=100, turn_credit=turn_credit)[0]


def test_episodes_of_one_three_and_seven_turns_give_a_baseline_of_three_rewards():
    rewards = [{"right": 3.0}, {"right": 0.0}, {"right": 0.0}]
    group = grouped(scored(turns(1), turns(3), turns(7), rewards=rewards))
    # over eleven turns the mean would be 3/11
    assert [rollout.advantage for rollout in group.rollouts] == [2.0, -1.0, -1.0]
    assert [rollout.turn_advantages for rollout in group.rollouts] == [None] * 3
    assert len(samples_of([group])) == 3


def test_without_a_function_each_environment_judges_its_own_groups():
    options, small, large = AdvantageConfig(filter_range=(0.0, 1.0)), (1.0, 0.0), (None, None)
    assert is_inside({"small": small, "large": large}, (False, False), options)
    assert is_inside({"small": large, "large": small}, (False, False), options)
    assert not is_inside({"small": large, "large": (1.0, 1.0)}, (False, False), options)
    assert not is_inside({"small": large, "large": large}, (False, False), options)


def test_an_environment_that_failed_is_in_no_loss_and_no_baseline():
    broken = conversation(("ab", ""), failure="world: turn 1: ValueError")
    made = scripted_sampler(
        [[completion("good"), completion("bad"), broken]],
        {"right": lambda completions, **_: [float(text == "good") for text in completions]},
        {"right": 1.0},
        AdvantageConfig(advantage="none"),
        num_generations=3,
    )
    batch = made.sample(taking([task("0")]), 1)
    good, bad, failed = batch.groups[0].rollouts
    assert (good.advantage, bad.advantage) == (0.5, -0.5)
    assert (failed.reward, failed.advantage, failed.dropped) == (None, 0.0, "environment_failed")
    assert len(samples_of(batch.groups)) == 2
    assert rollout_metrics(batch)["rollouts_without_reward"] == 1


def test_a_reward_function_that_failed_is_told_from_an_environment_that_did():
    broken = conversation(("ab", ""), failure="world: begin: ValueError")
    rewards = [{"right": 1.0}, {"right": None}, {"right": None}]
    group = grouped(scored(turns(2), turns(2), broken, rewards=rewards, failed=[1, 2]), turn_credit=1.0)
    assert [rollout.dropped for rollout in group.rollouts] == [None, "reward_failed", "environment_failed"]
    assert [rollout.turn_advantages for rollout in group.rollouts] == [(0.0, 0.0), None, None]
    assert group.dropped == "zero_deviation"


def test_lengths_are_of_sampled_tokens():
    # 4 sampled ones of 7; the penalty falls from 2 to 6: (2 - 4) / 4
    one = scored(turns(2), rewards=[{"right": 1.0}])
    group = make_groups([one], AdvantageConfig(overlong_share=4 / 6), weights=WEIGHTS, max_completion_length=6)[0]
    assert group.rollouts[0].rewards["overlong"] == -0.5
    made = scripted_sampler(
        [[turns(2), turns(3)]],
        {"right": lambda completions, **_: [1.0] * len(completions)},
        {"right": 1.0},
        AdvantageConfig(),
    )
    metrics = rollout_metrics(made.sample(taking([task("0")]), 1))
    assert (metrics["completion_length_mean"], metrics["completion_length_max"]) == (5.0, 6)
    assert metrics["tokens_generated"] == 10


def test_rewards_of_turns_add_up_to_that_of_the_episode():
    one = turns(3, 0.5, None, 1.0)
    # 2 * 0.5 and 2 * 1 of the world, 4 of a function
    rewards, weights = {"world": 1.5, "right": 4.0}, {"world": 2.0, "right": 1.0}
    assert turn_rewards(one, rewards, 7.0, weights=weights) == (1.0, 0.0, 6.0)
    # an environment whose rewards count nothing
    assert turn_rewards(one, {"right": 4.0}, 4.0, weights=weights) == (0.0, 0.0, 4.0)
    # one that ends with a reward of its own: 3, of which turns had 1.5
    assert turn_rewards(one, {"world": 3.0}, 3.0, weights={"world": 1.0}) == (0.5, 0.0, 2.5)
    assert turn_rewards(trajectory("one turn"), {"right": 4.0}, 4.0, weights=weights) == (4.0,)
    assert turn_rewards(one, {"world": None}, None, weights=weights) == ()


def test_what_is_left_by_rounding_is_no_reward_of_the_last_turn():
    assert turn_rewards(turns(3, 0.1, 0.2, 0.0), {"world": 0.1 + 0.2}, 0.3, weights=WEIGHTS) == (0.1, 0.2, 0.0)


def test_turns_are_credited_with_what_came_after_them():
    episodes = turns(2, 1.0, 0.5), turns(2, 0.0, 1.0), turns(1, 0.0)
    rewards = [{"world": 1.5, "right": 0.0}, {"world": 1.0, "right": 1.0}, {"world": 0.0, "right": 0.0}]
    group = grouped(scored(*episodes, rewards=rewards), turn_credit=1.0)
    # from turn 1 on 1.5, 2, 0; from turn 2 on 0.5, 2
    first, second, third = group.rollouts
    assert first.turn_advantages == pytest.approx((1.5 - 3.5 / 3, 0.5 - 1.25))
    assert second.turn_advantages == pytest.approx((2.0 - 3.5 / 3, 2.0 - 1.25))
    assert third.turn_advantages == pytest.approx((-3.5 / 3,))
    assert [one.advantage for one in group.rollouts] == pytest.approx([1.5 - 3.5 / 3, 2.0 - 3.5 / 3, -3.5 / 3])
    assert [row.advantages for row in samples_of([group])] == [one.turn_advantages for one in group.rollouts]


def test_a_completion_without_an_episode_is_credited_as_one_turn():
    rewards = [{"right": 1.0}, {"right": 0.0}]
    group = grouped(scored(trajectory("one"), trajectory("other"), rewards=rewards), turn_credit=0.5)
    assert [(one.advantage, one.turn_advantages) for one in group.rollouts] == [(0.5, None), (-0.5, None)]


def test_a_group_of_equal_sums_may_have_turns_to_learn_from():
    rewards = [{"world": 1.0}, {"world": 1.0}]
    one = scored(turns(2, 1.0, 0.0), turns(2, 0.0, 1.0), rewards=rewards)
    assert grouped(one, turn_credit=1.0).dropped is None
    assert grouped(one, turn_credit=1.0).rollouts[0].turn_advantages == (0.0, -0.5)
    assert grouped(one).dropped == "zero_deviation"
    assert grouped(one, turn_credit=1.0, advantage="group").dropped == "zero_deviation"


def test_turns_that_one_episode_alone_reached_are_counted():
    right = {"right": lambda completions, **_: [1.0, 2.0, 3.0]}
    made = scripted_sampler(
        [[turns(2), turns(7), completion("one")]], right, {"right": 1.0}, AdvantageConfig(), num_generations=3
    )
    batch = made.sample(taking([task("0")]), 1)
    assert "turns_without_sibling" not in rollout_metrics(batch)
    (group,) = batch.groups
    credited = [replace(one, turn_advantages=(0.0,) * 7) for one in group.rollouts]
    metrics = rollout_metrics(replace(batch, groups=(replace(group, rollouts=tuple(credited)),)))
    assert metrics["turns_without_sibling"] == 5


def test_an_advantage_that_a_program_sets_takes_the_place_of_its_turns():
    rewards = [{"right": 1.0}, {"right": 0.0}]
    group = grouped(scored(turns(2), turns(2), rewards=rewards), turn_credit=1.0)
    first, second = group.rollouts
    changed = replace(group, rollouts=(replace(first, advantage=9.0), second))
    (found,) = as_changed([group], [changed])
    assert [(one.advantage, one.turn_advantages) for one in found.rollouts] == [(9.0, None), (-0.5, (-0.5, -0.5))]
    changed = replace(group, rollouts=(replace(first, turn_advantages=(3.0, 0.0)), second))
    assert as_changed([group], [changed])[0].rollouts[0].turn_advantages == (3.0, 0.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((1.0,), r"one number for each of the 2 turns of an episode, got \(1\.0,\) for task 0"),
        ((1.0, float("nan")), "every advantage must be a finite number"),
    ],
)
def test_turn_advantages_of_a_program_are_one_finite_number_per_turn(values, message):
    group = grouped(scored(turns(2), turns(2), rewards=[{"right": 1.0}, {"right": 0.0}]))
    changed = replace(group.rollouts[0], turn_advantages=values)
    with pytest.raises(ConfigError, match=message):
        as_changed([group], [replace(group, rollouts=(changed, group.rollouts[1]))])
