"""Advantages of each kind have values worked out by hand, and equal rewards give exactly zero."""

import math
from itertools import chain

import pytest

from paceline.config.algorithms import ADVANTAGES
from paceline.errors import ConfigError
from paceline.objective.advantages import (
    advantages,
    carries_signal,
    check_advantage,
    normalized_sums,
    overlong_penalty,
    own_advantages,
    without_rounding,
)

STD_0_1_2 = 1.0  # sample standard deviation of 0, 1, 2
ALL = list(ADVANTAGES)


def test_a_group_is_centred_on_its_mean_and_scaled_by_its_sample_std():
    (got,) = advantages([[0.0, 1.0, 2.0]], kind="group")
    assert got == pytest.approx([-1 / (STD_0_1_2 + 1e-4), 0.0, 1 / (STD_0_1_2 + 1e-4)])


def test_without_normalisation_only_the_mean_is_taken_off():
    assert advantages([[1.0, 0.0, 2.0]], kind="none") == [[0.0, -1.0, 1.0]]


def test_leave_one_out_compares_with_the_mean_of_the_others():
    assert advantages([[1.0, 0.0, 2.0]], kind="leave_one_out") == [[0.0, -1.5, 1.5]]


def test_batch_uses_mean_and_std_of_all_rewards():
    got = advantages([[0.0, 0.0], [1.0, 3.0]], kind="batch")
    std = math.sqrt(6 / 3)  # mean 1: squares 1, 1, 0, 4 over n - 1
    assert [*chain(*got)] == pytest.approx([value / (std + 1e-4) for value in (-1, -1, 0, 2)])


def test_group_mean_with_batch_std_scales_all_groups_alike():
    got = advantages([[0.0, 2.0], [1.0, 1.0]], kind="group_mean_batch_std")
    std = math.sqrt(2 / 3)  # centred: -1, 1, 0, 0
    assert [*chain(*got)] == pytest.approx([value / (std + 1e-4) for value in (-1, 1, 0, 0)])


def test_group_mean_with_the_rewards_std_scales_all_groups_alike():
    got = advantages([[0.0, 2.0], [1.0, 5.0]], kind="group_mean_reward_std")
    std = math.sqrt(14 / 3)  # mean 2: squares 4, 0, 1, 9
    assert [*chain(*got)] == pytest.approx([value / (std + 1e-4) for value in (-1, 1, -2, 2)])


@pytest.mark.parametrize("kind", ALL)
def test_equal_rewards_have_advantages_of_exactly_zero_whatever_the_mean_rounds_to(kind):
    (got,) = advantages([[0.736702006761814] * 7], kind=kind)
    assert got == [0.0] * 7
    assert not carries_signal(got)


@pytest.mark.parametrize("kind", ALL)
def test_a_missing_reward_takes_part_in_nothing(kind):
    with_missing = advantages([[1.0, None, 0.0], [None, None, None], [2.0, 0.0, None]], kind=kind)
    without = advantages([[1.0, 0.0], [2.0, 0.0]], kind=kind)
    (a, missing, b), none, (c, d, _) = with_missing
    assert [[a, b], [c, d]] == without
    assert missing == 0.0
    assert none == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", ALL)
def test_a_group_of_one_has_no_advantage_over_itself(kind):
    assert advantages([[3.0]], kind=kind) == [[0.0]]


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind != "batch"])
def test_groups_of_one_have_none_even_beside_others(kind):
    assert advantages([[3.0], [0.0], [1.0]], kind=kind) == [[0.0]] * 3


def test_groups_of_one_are_compared_with_the_batch_where_the_kind_says_batch():
    got = advantages([[3.0], [0.0], [0.0]], kind="batch")
    std = math.sqrt(6 / 2)  # mean 1: squares 4, 1, 1
    assert [*chain(*got)] == pytest.approx([value / (std + 1e-4) for value in (2, -1, -1)])


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind != "batch"])
def test_a_group_of_equal_rewards_is_exactly_zero_beside_others_that_are_not(kind):
    got = advantages([[0.1, 0.7], [0.1, 0.1], [0.3, 0.2]], kind=kind)
    assert got[1] == [0.0, 0.0]
    assert [carries_signal(group) for group in got] == [True, False, True]


@pytest.mark.parametrize("kind", ALL)
def test_a_step_without_any_reward_has_no_advantages(kind):
    assert advantages([[None, None], [None]], kind=kind) == [[0.0, 0.0], [0.0]]
    assert advantages([], kind=kind) == []


@pytest.mark.parametrize("kind", ALL)
def test_advantages_of_a_step_sum_to_zero(kind):
    got = advantages([[0.3, 1.7, 2.0], [5.0, 1.0, 0.0]], kind=kind)
    assert sum(sum(group) for group in got) == pytest.approx(0.0, abs=1e-12)


def test_rewards_normalised_before_they_are_summed_weigh_alike_whatever_their_scale():
    group = {"small": [0.0, 1.0, 2.0], "large": [300.0, 100.0, 200.0]}
    (got,) = normalized_sums([group], {"small": 1.0, "large": 0.5})
    small, large = 1 / 1.0001, 0.5 * 100 / 100.0001  # standard deviations 1 and 100
    assert got == pytest.approx([large - small, -large, small])


def test_a_reward_that_is_missing_leaves_the_others_of_its_completion():
    group = {"a": [0.0, 2.0, None], "b": [None, 1.0, None]}
    (got,) = normalized_sums([group], {"a": 1.0, "b": 1.0})
    scale = math.sqrt(2) + 1e-4
    assert got[:2] == pytest.approx([-1 / scale, 1 / scale])  # b stands alone: no std, 0.0
    assert got[2] is None


def test_several_rewards_that_are_equal_within_a_group_are_exactly_zero_after_the_batch_too():
    groups = [
        {"a": [1.0, 0.0, 0.0], "b": [0.3, 0.1, 0.9]},
        {"a": [1.0, 1.0, 1.0], "b": [0.1, 0.1, 0.1]},
        {"a": [0.0, 1.0, 1.0], "b": [0.7, 0.7, 0.1]},
    ]
    got = advantages(normalized_sums(groups, {"a": 1.0, "b": 0.5}), kind="batch")
    assert [carries_signal(group) for group in got] == [True, False, True]


@pytest.mark.parametrize(
    ("length", "penalty"),
    [(1, 0.0), (12, 0.0), (13, -0.25), (14, -0.5), (15, -0.75), (16, -1.0), (17, -1.0), (400, -1.0)],
)
def test_length_is_free_then_costs_along_a_line_then_costs_one(length, penalty):
    assert overlong_penalty(length, max_length=16, buffer=4) == penalty


def test_sums_that_differ_by_their_rounding_alone_are_one_number_and_others_stay():
    ulp = 2.0**-52
    sums = [[0.1 + 0.2, 0.3, None], [0.3 + 1e-12, 5e-17]]
    got = without_rounding(sums, [[0.3, 0.3, None], [0.3, 0.6]])
    assert got == [[0.3, 0.3, None], [0.3 + 1e-12, 5e-17]]  # 5e-17 has nothing near it to be equal to
    # 1 - 1 + 5e-17 beside 0: rounding of terms of size 2
    assert without_rounding([[0.0, 5e-17]], [[0.0, 2.0]]) == [[0.0, 0.0]]
    # compared with the least of its kind: a chain of single ulps does not join what is far apart
    chain_of_ulps = [1.0 + step * ulp for step in range(100)]
    assert len(set(*without_rounding([chain_of_ulps], [[1.0] * 100]))) > 5
    # what is large beside them makes small ones no more alike
    assert without_rounding([[0.0, 1.0, 1e20]], [[0.0, 1.0, 1e20]]) == [[0.0, 1.0, 1e20]]


def test_opposite_rewards_normalised_one_by_one_cancel_to_exactly_nothing():
    # thirds: 1 - 1/3 and 2/3 - 0 are rounded apart, so that the sums would be some 1e-16
    groups = [{"a": [1.0, 0.0, 0.0], "b": [0.0, 1.0, 1.0]}] * 2
    got = advantages(normalized_sums(groups, {"a": 1.0, "b": 1.0}), kind="batch")
    assert got == [[0.0] * 3] * 2


def test_an_advantage_of_ones_own_gives_nothing_to_a_completion_without_a_reward():
    def halves(rewards):
        return [9.0 if reward is None else reward / 2 for reward in rewards]

    assert own_advantages([1.0, None, -3.0], halves, "mine.py:halves") == [0.5, 0.0, -1.5]
    check_advantage(halves, "mine.py:halves")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda rewards: rewards[1:], r"got 3 values for rewards \[1\.0, 0\.0, 0\.0, 1\.0\]; correct the function, or"),
        (lambda rewards: rewards, r"got None for rewards \[1\.0, None, 0\.0\]"),
        (lambda rewards: [math.log((reward or 0) ** 2 + 0.1) / 0.0 for reward in rewards], "got ZeroDivisionError"),
        (lambda rewards: [math.inf for _ in rewards], "got inf for"),
        (lambda rewards: ["1" for _ in rewards], "got '1' for"),
        (lambda rewards: 1.0, "got TypeError"),
    ],
)
def test_an_advantage_that_is_not_one_finite_number_each_is_refused(function, message):
    with pytest.raises(ConfigError, match=message) as refusal:
        check_advantage(function, "mine.py:f")
    assert "--advantage mine.py:f must return one finite number for each completion" in str(refusal.value)
