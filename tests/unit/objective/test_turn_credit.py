"""Turns are credited with what came after them, beside those of the group that reached the same turn."""

import itertools

import pytest

from paceline.config.algorithms import CREDITED, STD_EPS
from paceline.objective.advantages import advantages, turn_advantages


@pytest.mark.parametrize("kind", CREDITED)
def test_one_reward_at_the_end_gives_every_turn_the_advantage_of_the_episode(kind):
    rewards = [[1.0, 0.3, 0.0, 1.0], [0.1, 0.7], [0.5, None, 0.25]]
    turns = [[0.0, 0.0, reward] if reward is not None else [] for group in rewards for reward in group]
    places = iter(turns)
    groups = [[next(places) for _ in group] for group in rewards]
    wanted = advantages(rewards, kind=kind)
    for found, values in zip(turn_advantages(groups, kind=kind, discount=1.0), wanted, strict=True):
        for of_turns, value in zip(found, values, strict=True):
            assert of_turns == ((value,) * 3 if of_turns else ())
    assert turn_advantages(groups, kind=kind, discount=1.0)[2][1] == ()


def test_a_turn_is_compared_with_those_that_reached_it():
    # from turn 1 on: 1.5, 1, 0; from turn 2 on: 0.5, 1
    ((first, second, third),) = turn_advantages([[[1.0, 0.5], [0.0, 1.0], [0.0]]], kind="none", discount=1.0)
    assert first == pytest.approx((1.5 - 2.5 / 3, 0.5 - 0.75))
    assert second == pytest.approx((1.0 - 2.5 / 3, 1.0 - 0.75))
    assert third == pytest.approx((-2.5 / 3,))


def test_later_rewards_are_discounted_once_per_turn():
    # from turn 1 on: 1 + 0.5 * 2 + 0.25 * 4 = 3 and 0; from turn 2 on: 2 + 0.5 * 4 and 0; then 4 and 0
    ((first, second),) = turn_advantages([[[1.0, 2.0, 4.0], [0.0, 0.0, 0.0]]], kind="none", discount=0.5)
    assert first == (1.5, 2.0, 2.0)
    assert second == (-1.5, -2.0, -2.0)


def test_a_turn_that_nobody_else_reached_is_compared_with_the_groups_mean():
    # mean of R is (3 + 1) / 2; the first had earned 1 before turn 2: 2 - (2 - 1)
    ((first, second),) = turn_advantages([[[1.0, 2.0], [1.0]]], kind="none", discount=1.0)
    assert first == (1.0, 1.0)
    assert second == (-1.0,)
    # without oneself: 3 - 1 at turn 1, 2 - (1 - 1) at turn 2
    ((first, second),) = turn_advantages([[[1.0, 2.0], [1.0]]], kind="leave_one_out", discount=1.0)
    assert first == (2.0, 2.0)
    assert second == (-2.0,)


def test_the_scale_is_that_of_whole_episodes():
    # R is 2 and 0: mean 1, standard deviation 2^0.5
    ((first, second),) = turn_advantages([[[0.5, 1.5], [0.0, 0.0]]], kind="group", discount=1.0)
    scale = 2**0.5 + STD_EPS
    assert first == pytest.approx((1.0 / scale, 0.75 / scale))
    assert second == pytest.approx((-1.0 / scale, -0.75 / scale))


@pytest.mark.parametrize("kind", ["group", "group_mean_batch_std", "group_mean_reward_std"])
def test_equal_sums_carry_no_signal_for_a_kind_that_scales(kind):
    assert turn_advantages([[[1.0, 0.0], [0.0, 1.0]]], kind=kind, discount=1.0) == [[(0.0, 0.0), (0.0, 0.0)]]


def test_sums_that_differ_by_rounding_carry_no_signal():
    ((first, second, third),) = turn_advantages([[[0.1, 0.2], [0.3], [0.2, 0.1]]], kind="none", discount=1.0)
    assert (first[0], second, third[0]) == (0.0, (0.0,), 0.0)
    ((long, short),) = turn_advantages([[[0.1, 0.2, 0.3], [0.6]]], kind="leave_one_out", discount=1.0)
    assert (long, short) == ((0.0, 0.0, 0.0), (0.0,))


def test_an_episode_without_others_to_compare_with_has_no_signal():
    for kind in CREDITED:
        assert turn_advantages([[[1.0, 2.0], []]], kind=kind, discount=0.5) == [[(0.0, 0.0), ()]]


def slope(credit) -> float:
    """Expected gradient by the logit of going on to a second turn, which half of eight episodes do, and earn 0.5."""
    total = 0.0
    for chosen in itertools.product((0, 1), repeat=8):
        values = credit([[0.0, 0.5] if one else [0.0] for one in chosen])
        total += sum((one - 0.5) * value[0] for one, value in zip(chosen, values, strict=True)) / 8
    return total / 2**8


def test_a_useful_second_turn_is_learned():
    # P (1 - P) * 0.5 = 0.125 times 7/8, as the mean has oneself in it
    assert slope(lambda group: turn_advantages([group], kind="none", discount=1.0)[0]) == pytest.approx(0.125 * 7 / 8)
    assert slope(lambda group: turn_advantages([group], kind="leave_one_out", discount=1.0)[0]) == pytest.approx(0.125)


def test_means_summed_over_an_episodes_own_turns_would_not_learn_it():
    def forbidden(group):
        later = [one[1] for one in group if len(one) > 1]
        return [(one[1] - sum(later) / len(later) if len(one) > 1 else 0.0,) for one in group]

    assert slope(forbidden) == pytest.approx(0.0)
