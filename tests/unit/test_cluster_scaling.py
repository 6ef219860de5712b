"""What sampling takes other numbers of producers: shares, slots, and a cost fitted to what was measured."""

import pytest

from paceline.cluster.scaling import Cost, Work, fit_cost, largest_work, positions_of

WORKS = [Work(positions=p, tokens=t, completions=4) for p, t in ((10, 80), (15, 80), (20, 100))]


@pytest.mark.parametrize(
    ("slots", "positions"),
    [
        (4, 5),  # all side by side: the longest
        (2, 5),  # 1, 2 and 2 one after the other beside 5
        (1, 10),  # one after the other
    ],
)
def test_completions_that_find_no_slot_wait_for_the_first_that_is_free(slots, positions):
    assert positions_of([5, 1, 2, 2], slots) == positions


def test_a_share_is_of_whole_groups_and_the_largest_of_each_number_counts():
    lengths = [[9, 1], [4, 4], [4, 4]]
    assert largest_work(lengths, num_producers=1, slots=8) == Work(positions=9, tokens=26, completions=6)
    # one producer has the first group, the other has the rest
    assert largest_work(lengths, num_producers=2, slots=8) == Work(positions=9, tokens=16, completions=4)
    assert largest_work(lengths, num_producers=9, slots=8) == Work(positions=9, tokens=10, completions=2)


@pytest.mark.parametrize(
    "cost",
    [
        Cost(per_position=0.02, per_token=0.001),
        Cost(per_position=0.0, per_token=0.025),
        Cost(per_position=0.1, per_token=0.0),
    ],
)
def test_a_cost_is_found_again_from_what_it_makes_of_work(cost):
    found = fit_cost(WORKS, [cost.seconds(work) for work in WORKS])
    assert (found.per_position, found.per_token) == pytest.approx((cost.per_position, cost.per_token), abs=1e-12)


def test_no_part_of_a_cost_is_negative():
    # more positions take less time here: nothing but noise
    found = fit_cost(WORKS, [3.0, 2.0, 2.5])
    assert min(found.per_position, found.per_token) == 0.0


def test_steps_that_are_all_alike_promise_nothing_to_more_producers():
    same = [WORKS[0]] * 3
    assert fit_cost(same, [1.0, 1.0, 1.0]) == Cost(per_position=0.1, per_token=0.0)
