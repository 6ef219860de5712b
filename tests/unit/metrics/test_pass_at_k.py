"""pass@k, average and majority of several samples have the values of their definitions."""

import itertools

import pytest

from paceline.metrics.statistics import avg_at_k, maj_at_k, pass_at_k


def test_avg_at_k_is_the_share_that_is_right():
    assert avg_at_k(3, 8) == 0.375


def test_pass_at_k_is_the_chance_that_one_of_k_drawn_samples_is_right():
    assert pass_at_k(correct=1, n=4, k=1) == pytest.approx(1 / 4)
    assert pass_at_k(correct=2, n=4, k=2) == pytest.approx(1 - 1 / 6)  # 1 of the 6 pairs holds no right one
    assert pass_at_k(correct=0, n=4, k=4) == 0.0


@pytest.mark.parametrize(
    ("votes", "value"),
    [
        ([("4", True), ("5", False), ("4", True)], 1.0),
        ([("5", False), ("5", False), ("4", True)], 0.0),
        ([("4", True), ("5", False)], 0.5),  # a tie of two
        ([("4", True), ("5", False), ("6", False)], 1 / 3),  # a tie of three
        ([("1 / 2", True), ("1/2", True), ("2", False), ("3", False)], 1.0),  # spaces do not tell answers apart
        ([(None, False), (None, False), ("4", True)], 1.0),  # who states nothing does not vote
        ([(None, False)], 0.0),
        ([], 0.0),
        ([("4", True), ("4", False)], 0.5),  # graded unlike
    ],
)
def test_the_majority_decides_and_ties_are_shared(votes, value):
    assert maj_at_k(votes) == pytest.approx(value)
    assert {maj_at_k(order) for order in itertools.permutations(votes)} == {maj_at_k(votes)}
