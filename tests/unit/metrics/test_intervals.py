"""Confidence intervals of shares, means and paired differences have textbook values."""

import pytest

from paceline.metrics.statistics import mean_interval, paired_difference, wilson


def test_wilsons_interval_has_the_textbook_values():
    # 15 of 50 at 95 %: 0.1910 to 0.4375 (A. Agresti and B. Coull, The American Statistician 52 (1998), formula 2)
    got = wilson(15, 50)
    assert (got.value, got.low, got.high) == (0.3, pytest.approx(0.1910, abs=5e-5), pytest.approx(0.4375, abs=5e-5))


def test_wilsons_interval_stays_within_zero_and_one():
    assert wilson(0, 20).low == 0.0
    assert 0.8 < wilson(20, 20).low < wilson(20, 20).high == 1.0


@pytest.mark.parametrize(("correct", "n"), [(0, 0), (3, 2), (-1, 5)])
def test_impossible_counts_are_refused(correct, n):
    with pytest.raises(ValueError, match="correct must lie in"):
        wilson(correct, n)


def test_a_mean_has_a_normal_interval_of_its_sample_std():
    got = mean_interval([0.0, 1.0, 1.0, 0.0])
    half = 1.959963984540054 * (1 / 3 / 4) ** 0.5
    assert (got.value, got.low, got.high) == (0.5, pytest.approx(0.5 - half), pytest.approx(0.5 + half))


def test_a_paired_difference_counts_tasks_gained_and_lost():
    before = [False] * 60 + [True] * 40
    after = [True] * 50 + [False] * 10 + [True] * 38 + [False] * 2
    got = paired_difference(before, after)
    # 50 gained, 2 lost of 100; with half a task per cell: (50.5 - 2.5) / 102, variance 53 - 48^2 / 102
    assert got.value == 0.48
    half = 1.959963984540054 * (53 - 48**2 / 102) ** 0.5 / 102
    assert (got.low, got.high) == (pytest.approx(48 / 102 - half), pytest.approx(48 / 102 + half))


def test_two_equal_measurements_differ_by_zero_with_an_interval_around_it():
    got = paired_difference([True, False] * 250, [True, False] * 250)
    assert got.value == 0.0
    assert got.low == -got.high < 0 < got.high < 0.005


def test_a_difference_needs_the_same_tasks_on_both_sides():
    with pytest.raises(ValueError, match="got 1 and 2"):
        paired_difference([True], [True, False])
