import math
from itertools import chain

import pytest

from paceline.advantages import advantages, carries_signal

STD_0_1_2 = 1.0  # sample deviation of 0, 1, 2
ALL = ["group", "batch", "group_mean_batch_std", "leave_one_out", "none"]


def test_a_group_is_centred_on_its_mean_and_scaled_by_its_sample_deviation():
    (got,) = advantages([[0.0, 1.0, 2.0]], kind="group")
    assert got == pytest.approx([-1 / (STD_0_1_2 + 1e-4), 0.0, 1 / (STD_0_1_2 + 1e-4)])


def test_without_normalisation_only_the_mean_is_taken_off():
    assert advantages([[1.0, 0.0, 2.0]], kind="none") == [[0.0, -1.0, 1.0]]


def test_leave_one_out_compares_with_the_mean_of_the_others():
    assert advantages([[1.0, 0.0, 2.0]], kind="leave_one_out") == [[0.0, -1.5, 1.5]]


def test_batch_uses_mean_and_deviation_of_all_rewards():
    got = advantages([[0.0, 0.0], [1.0, 3.0]], kind="batch")
    deviation = math.sqrt(6 / 3)  # mean 1: squares 1, 1, 0, 4 over n - 1
    assert [*chain(*got)] == pytest.approx([value / (deviation + 1e-4) for value in (-1, -1, 0, 2)])


def test_group_mean_with_batch_deviation_scales_all_groups_alike():
    got = advantages([[0.0, 2.0], [1.0, 1.0]], kind="group_mean_batch_std")
    deviation = math.sqrt(2 / 3)  # centred: -1, 1, 0, 0
    assert [*chain(*got)] == pytest.approx([value / (deviation + 1e-4) for value in (-1, 1, 0, 0)])


@pytest.mark.parametrize("kind", ["group", "group_mean_batch_std", "leave_one_out", "none"])
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


@pytest.mark.parametrize("kind", ALL)
def test_advantages_of_a_step_sum_to_zero(kind):
    got = advantages([[0.3, 1.7, 2.0], [5.0, 1.0, 0.0]], kind=kind)
    assert sum(sum(group) for group in got) == pytest.approx(0.0, abs=1e-12)
