"""What a step takes other numbers of processes: shares, slots, and a cost fitted to what was measured."""

import pytest

from paceline.workers.ray.scaling import Cost, StepWork, fit_cost, passes_of, sampling_work, update_work

WORKS = [StepWork(passes=p, tokens=t) for p, t in ((10, 80), (15, 80), (20, 100))]


@pytest.mark.parametrize(
    ("slots", "passes"),
    [
        (4, 5),  # all side by side: the longest
        (2, 5),  # 1, 2 and 2 one after the other beside 5
        (1, 10),  # one after the other
    ],
)
def test_completions_that_find_no_slot_wait_for_the_first_that_is_free(slots, passes):
    assert passes_of([5, 1, 2, 2], slots) == passes


def test_a_share_is_of_whole_groups_and_the_largest_of_each_number_counts():
    lengths = [[9, 1], [4, 4], [4, 4]]
    assert sampling_work(lengths, num_producers=1, slots=8) == StepWork(passes=9, tokens=26)
    # one producer has the first group, the other has the rest
    assert sampling_work(lengths, num_producers=2, slots=8) == StepWork(passes=9, tokens=16)
    assert sampling_work(lengths, num_producers=9, slots=8) == StepWork(passes=9, tokens=10)


def test_consumers_share_the_tokens_of_one_pass():
    assert update_work(300, num_consumers=2) == StepWork(passes=1, tokens=150)


@pytest.mark.parametrize(
    "cost",
    [
        Cost(per_pass=0.02, per_token=0.001),
        Cost(per_pass=0.0, per_token=0.025),
        Cost(per_pass=0.1, per_token=0.0),
    ],
)
def test_a_cost_is_found_again_from_what_it_makes_of_work(cost):
    found = fit_cost(WORKS, [cost.seconds(work) for work in WORKS])
    assert (found.per_pass, found.per_token) == pytest.approx((cost.per_pass, cost.per_token), abs=1e-12)


def test_no_part_of_a_cost_is_negative():
    # more passes take less time here: nothing but noise
    found = fit_cost(WORKS, [3.0, 2.0, 2.5])
    assert min(found.per_pass, found.per_token) == 0.0


def test_steps_that_are_all_alike_promise_nothing_to_more_producers():
    same = [WORKS[0]] * 3
    assert fit_cost(same, [1.0, 1.0, 1.0]) == Cost(per_pass=0.1, per_token=0.0)


def test_what_was_measured_changes_in_proportion_to_what_the_cost_knows():
    cost = Cost(per_pass=1.0, per_token=0.01)
    before, after = StepWork(passes=1, tokens=100), StepWork(passes=1, tokens=50)
    assert cost.in_proportion(3.0, before, after) == pytest.approx(2.25)  # a cost of 2 becomes one of 1.5
    assert cost.in_proportion(3.0, before, before) == 3.0
    assert Cost(per_pass=0.0, per_token=1.0).in_proportion(3.0, StepWork(passes=1, tokens=0), after) == 3.0
