"""The schedule on a simulated clock: schedules worked out by hand, and laws of any schedule."""

import random

import pytest

from paceline.workers.ray.simulation import StepSeconds, simulate, steady_pace

SCHEDULES = 500


def steps(*seconds: tuple[float, float], record: float = 0.0) -> list[StepSeconds]:
    """Steps of so many seconds of producing and updating."""
    return [StepSeconds(produce=produce, update=update, record=record) for produce, update in seconds]


def drawn(seed: int) -> list[StepSeconds]:
    chance = random.Random(seed)
    return [
        StepSeconds(produce=chance.choice([0.0, chance.random(), 5.0]), update=chance.random(), record=chance.random())
        for _ in range(chance.randint(1, 12))
    ]


@pytest.mark.parametrize(
    ("produce", "update", "max_staleness", "seconds"),
    [
        (2.0, 1.0, 0, 3.0),  # in turn: the sum
        (2.0, 1.0, 1, 2.0),  # side by side: the longer of the two
        (2.0, 1.0, 3, 2.0),  # what is even already, more staleness does not make faster
        (1.0, 2.0, 0, 3.0),
        (1.0, 2.0, 1, 2.0),
        (1.0, 1.0, 1, 1.0),  # at best twice as fast
    ],
)
def test_a_step_takes_the_sum_in_turn_and_the_longer_half_side_by_side(produce, update, max_staleness, seconds):
    assert steady_pace(steps((produce, update)), max_staleness=max_staleness).seconds == pytest.approx(seconds)


@pytest.mark.parametrize(("max_staleness", "seconds"), [(0, 4.0), (1, 2.5), (2, 2.0)])
def test_more_staleness_evens_out_steps_that_differ(max_staleness, seconds):
    # updates of 2 s beside sampling of 3 s and 1 s in turn: 2 s on average, but one step ahead has to wait for the 3
    assert steady_pace(steps((3.0, 2.0), (1.0, 2.0)), max_staleness=max_staleness).seconds == pytest.approx(seconds)


def test_the_start_by_hand():
    # sampled at 2, 4, then from version 1 which is there at 3: at 6; trained at 3, 5, 7
    line = simulate(steps(*[(2.0, 1.0)] * 3), max_staleness=1)
    assert line.produced == (2.0, 4.0, 6.0)
    assert line.published == line.recorded == (3.0, 5.0, 7.0)


def test_writing_down_goes_on_beside_the_next_sampling_even_in_turn():
    assert steady_pace(steps((2.0, 1.0), record=0.5), max_staleness=0).seconds == pytest.approx(3.0)
    assert steady_pace(steps((0.25, 1.0), record=0.5), max_staleness=0).seconds == pytest.approx(1.5)


def test_who_waits_and_for_how_much_of_the_time():
    in_turn, ahead = (steady_pace(steps((2.0, 1.0)), max_staleness=staleness) for staleness in (0, 1))
    assert (in_turn.producers_wait, in_turn.consumers_wait) == pytest.approx((1 / 3, 2 / 3))
    assert (ahead.producers_wait, ahead.consumers_wait) == pytest.approx((0.0, 0.5))


def test_steps_are_needed():
    with pytest.raises(ValueError, match="steps must hold at least one step"):
        steady_pace([], max_staleness=0)


@pytest.mark.parametrize("max_staleness", range(4))
def test_every_schedule_is_that_of_the_rule_step_n_waits_for_version_n_minus_1_minus_k(max_staleness):
    for seed in range(SCHEDULES):
        line = simulate(drawn(seed), max_staleness=max_staleness)
        sampled = recorded = 0.0
        published = [0.0]  # version 0 is there at the start
        for index, step in enumerate(drawn(seed)):
            sampled = max(sampled, published[max(0, index - max_staleness)]) + step.produce
            published.append(max(sampled, recorded) + step.update)
            recorded = published[-1] + step.record
            assert line.produced[index] == pytest.approx(sampled)
            assert line.recorded[index] == pytest.approx(recorded)


def test_more_staleness_is_never_slower_and_nothing_is_faster_than_its_slower_side():
    for seed in range(SCHEDULES):
        given = drawn(seed)
        ends = [simulate(given, max_staleness=staleness).recorded[-1] for staleness in range(5)]
        assert ends == sorted(ends, reverse=True)
        longer = max(sum(one.produce for one in given), sum(one.update + one.record for one in given))
        assert ends[-1] >= longer - 1e-9
        assert steady_pace(given, max_staleness=4).seconds >= longer / len(given) - 1e-9
