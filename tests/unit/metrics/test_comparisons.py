"""Comparisons of two measurements: the exact test, the bootstrap, and what so many tasks can show."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from paceline.metrics.comparisons import (
    compare,
    compare_records,
    detectable_difference,
    drawn_tasks,
    level_of_best,
    mcnemar,
    paired_bootstrap,
    probability,
)


@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    [
        (0, 0, 1.0),
        (5, 0, 2 / 32),  # all five on one side, or all on the other
        (8, 1, 2 * (1 + 9) / 512),
        (1, 8, 2 * (1 + 9) / 512),
        (3, 3, 1.0),  # 2 * (1 + 6 + 15 + 20) / 64 is above 1
        (10, 4, 2 * (1 + 14 + 91 + 364 + 1001) / 2**14),
    ],
)
def test_the_exact_test_counts_the_splits_at_least_as_uneven(gained, lost, p):
    assert mcnemar(gained, lost) == p


def test_the_exact_test_has_no_limit_of_size():
    assert mcnemar(6000, 6000) == 1.0
    assert 0 < mcnemar(1500, 900) < 1e-30


def test_many_tasks_are_drawn_in_parts_and_none_is_left_out():
    differences = np.arange(30_000) % 7 - 3.0
    got = paired_bootstrap(differences.tolist(), resamples=40)
    means = sorted(float(differences[drawn_tasks(0, range(one, one + 1), 30_000)[0]].mean()) for one in range(40))
    assert (got.low, got.high) == (pytest.approx(means[0]), pytest.approx(means[-1]))


def test_tasks_that_all_changed_alike_have_a_bootstrap_of_one_point():
    got = paired_bootstrap([0.25] * 7)
    assert (got.value, got.low, got.high) == (0.25, 0.25, 0.25)


def test_the_bootstrap_of_two_tasks_reaches_from_one_to_the_other():
    # both draws are the first task a quarter of the time, and both the second a quarter
    got = paired_bootstrap([0.0, 1.0])
    assert (got.value, got.low, got.high) == (0.5, 0.0, 1.0)


def test_the_bootstrap_of_many_tasks_is_near_the_normal_interval():
    differences = [1.0] * 150 + [0.0] * 200 + [-1.0] * 50
    half = 1.96 * math.sqrt((0.5 - 0.25**2) / 400)
    got = paired_bootstrap(differences)
    assert got.value == 0.25
    assert (got.low, got.high) == (pytest.approx(0.25 - half, abs=0.01), pytest.approx(0.25 + half, abs=0.01))


def test_the_bootstrap_is_the_same_each_time_and_another_with_another_seed():
    differences = [0.1 * ((7 * i) % 11) for i in range(50)]
    assert paired_bootstrap(differences) == paired_bootstrap(differences)
    assert paired_bootstrap(differences, seed=1) != paired_bootstrap(differences)


def test_drawn_tasks_are_a_function_of_seed_and_resample_and_hit_every_task_alike():
    first, second = drawn_tasks(0, range(5, 7), 10).tolist()
    assert first == drawn_tasks(0, range(5, 6), 10).tolist()[0] != second
    assert second != drawn_tasks(1, range(6, 7), 10).tolist()[0]
    hits = np.bincount(drawn_tasks(0, range(5000), 10).ravel().astype(int), minlength=10)
    assert len(hits) == 10
    # 5,000 draws of each expected; the standard deviation is 67
    assert abs(hits - 5000).max() < 300


@pytest.mark.parametrize(
    ("n", "difference"),
    [
        # n d^2 = (1.959964 sqrt(0.2) + 0.841621 sqrt(0.2 - d^2))^2: 0.03957 gives 1000, 0.12382 gives 100
        (1000, 0.03957),
        (100, 0.12382),
        # all changes to one side, c = d: (1.959964 + 0.841621 sqrt(1 - d))^2 / d = 20 gives d = 0.34832
        (20, 0.34832),
    ],
)
def test_the_least_difference_solves_connors_equation(n, difference):
    got = detectable_difference(n)
    assert got == pytest.approx(difference, abs=1e-4)
    c = max(0.2, got)
    assert (1.959964 * math.sqrt(c) + 0.841621 * math.sqrt(c - got**2)) ** 2 / got**2 == pytest.approx(n, rel=1e-5)


def test_three_tasks_can_show_nothing():
    assert detectable_difference(3) is None
    assert detectable_difference(4) < 1


def test_a_comparison_of_single_completions_has_agresti_and_mins_interval():
    before = [0.0] * 60 + [1.0] * 40
    after = [1.0] * 50 + [0.0] * 10 + [1.0] * 38 + [0.0] * 2
    found = compare(before, after)
    assert (found.gained, found.lost, found.num_tasks) == (50, 2, 100)
    assert found.difference.value == found.bootstrap.value == 0.48
    # worked out in test_intervals
    assert found.difference.low == pytest.approx(48 / 102 - 1.959964 * (53 - 48**2 / 102) ** 0.5 / 102)
    assert found.p_value == 2 * (1 + 52 + 52 * 51 // 2) / 2**52


def test_a_comparison_of_several_completions_has_the_bootstraps_interval():
    found = compare([0.0, 0.5, 0.5, 1.0], [0.5, 1.0, 0.5, 0.5])
    assert (found.gained, found.lost) == (2, 1)
    assert found.difference == found.bootstrap
    assert found.difference.value == 0.125


def records(**verdicts: list[bool | None]) -> list[dict[str, object]]:
    return [{"task_id": task, "correct": one} for task, found in verdicts.items() for one in found]


def test_completions_are_gathered_by_task_and_tasks_that_one_side_could_not_grade_left_out():
    found = compare_records(
        records(a=[True, False], b=[None, None], c=[True, True]),
        records(c=[True, None], b=[True, True], a=[True, True]),
    )
    assert (found.num_tasks, found.gained, found.lost, found.difference.value) == (2, 1, 0, 0.25)
    assert compare_records(records(a=[True]), records(b=[True])) is None


def test_a_comparison_needs_the_same_tasks_on_both_sides():
    with pytest.raises(ValueError, match="got 1 and 2"):
        compare([1.0], [1.0, 0.0])
    with pytest.raises(ValueError, match="at least one number"):
        paired_bootstrap([])


def test_the_best_of_several_looks_has_to_be_surer():
    assert level_of_best(1) == 0.05
    assert level_of_best(14) == pytest.approx(0.00357, abs=1e-5)


def test_a_probability_has_two_figures_down_to_one_in_a_million():
    assert [probability(p) for p in (1.0, 0.0390625, 2e-6, 9e-7)] == ["p = 1", "p = 0.039", "p = 2e-06", "p < 1e-6"]


def test_the_page_on_evaluation_has_the_least_differences_and_the_example_right():
    page = (Path(__file__).parents[3] / "docs" / "evaluation.md").read_text()
    header, values = (re.search(rf"^\| {name} \|(.*)\|$", page, re.MULTILINE) for name in ("tasks", "points"))
    tasks = [int(cell.replace(",", "")) for cell in header[1].split("|")]
    assert [f"{100 * detectable_difference(n):.1f}" for n in tasks] == [cell.strip() for cell in values[1].split("|")]
    found = compare([0.0] * 60 + [1.0] * 40, [1.0] * 50 + [0.0] * 10 + [1.0] * 38 + [0.0] * 2)
    low, high = (f"{100 * bound:+.1f}" for bound in (found.difference.low, found.difference.high))
    assert f"[{low}, {high}]" in page
    assert f"/ 2^52 = {found.p_value:.1e}" in page
