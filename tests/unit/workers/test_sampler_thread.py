"""The thread that works the schedule off: the right weights under every job, failures where they are waited for."""

import threading

import pytest

from paceline.errors import TrainingError
from paceline.workers.schedule import InTurn, SamplerThread, StalenessSchedule


class RecordingWeights:
    """Remembers what it was told, in order; `produce` is a job of its own that says with which weights it ran."""

    def __init__(self) -> None:
        self.loaded = -1
        self.loads: list[int] = []
        self.forgotten = 0
        self.offers = 0

    def offer(self) -> None:
        self.offers += 1

    def load(self, version: int) -> None:
        assert version >= self.forgotten
        self.loaded = version
        self.loads.append(version)

    def forget(self, older_than: int) -> None:
        self.forgotten = older_than

    def produce(self, number: int) -> tuple[int, int]:
        return number, self.loaded


def sampler_thread(weights: RecordingWeights, *, last: int, max_staleness: int, produce=None) -> SamplerThread:
    schedule = StalenessSchedule(done=0, last=last, max_staleness=max_staleness)
    return SamplerThread(schedule, weights, produce or weights.produce)


def test_in_turn_every_step_is_made_from_the_weights_of_the_one_before():
    weights = RecordingWeights()
    thread = sampler_thread(weights, last=3, max_staleness=0)
    for number in (1, 2, 3):
        assert thread.take(number) == (number, number - 1)
        thread.publish(number)
    assert weights.loads == [0, 1, 2]


def test_ahead_by_two_the_first_three_steps_are_made_before_any_is_trained():
    weights = RecordingWeights()
    thread = sampler_thread(weights, last=5, max_staleness=2)
    assert [thread.take(number) for number in (1, 2, 3)] == [(1, 0), (2, 0), (3, 0)]
    for number in (1, 2):
        thread.publish(number)
    assert [thread.take(number) for number in (4, 5)] == [(4, 1), (5, 2)]


def test_a_measurement_sees_the_newest_weights_and_the_next_step_its_own():
    weights = RecordingWeights()
    thread = sampler_thread(weights, last=4, max_staleness=1)
    thread.take(1)
    thread.publish(1)
    assert thread.measure(lambda: weights.loaded) == 1
    thread.take(2)
    thread.publish(2)
    assert thread.measure(lambda: weights.loaded) == 2
    assert thread.take(3) == (3, 1)


def test_weights_that_no_job_will_ask_for_are_forgotten():
    weights = RecordingWeights()
    thread = sampler_thread(weights, last=5, max_staleness=1)
    for number in (1, 2, 3):
        thread.take(number)
        thread.publish(number)
    thread.take(4)
    thread.take(5)
    assert weights.forgotten == 3  # what step 5 was made from


def test_while_steps_are_there_already_only_the_newest_weights_are_kept():
    weights = RecordingWeights()
    schedule = StalenessSchedule(done=2, last=9, max_staleness=1, again=6)
    thread = SamplerThread(schedule, weights, weights.produce)
    for number in (3, 4, 5):
        thread.publish(number)
        assert weights.forgotten == number
    assert thread.measure(lambda: weights.loaded) == 5
    for number in (6, 7):
        thread.publish(number)
    assert thread.take(9) == (9, 7)
    assert weights.loads == [5, 7]


def test_what_is_being_made_can_be_waited_for_without_taking_it():
    thread = sampler_thread(RecordingWeights(), last=3, max_staleness=1)
    thread.reach(2)
    assert [thread.take(number) for number in (1, 2)] == [(1, 0), (2, 0)]


def test_what_ends_the_production_is_raised_where_its_result_is_waited_for():
    def fail(number: int) -> None:
        raise TrainingError(f"no completion of step {number} got a reward")

    thread = sampler_thread(RecordingWeights(), last=2, max_staleness=0, produce=fail)
    with pytest.raises(TrainingError, match="no completion of step 1 got a reward"):
        thread.take(1)
    with pytest.raises(TrainingError, match="no completion of step 1 got a reward"):
        thread.measure(lambda: None)


def test_nothing_is_begun_after_the_close():
    began, go = threading.Event(), threading.Event()
    weights, made = RecordingWeights(), list[int]()

    def produce(number: int) -> int:
        made.append(number)
        began.set()
        assert go.wait(timeout=60)
        return number

    thread = sampler_thread(weights, last=3, max_staleness=2, produce=produce)
    assert began.wait(timeout=60)
    thread.close()
    go.set()
    assert thread.take(1) == 1  # the job at hand ends
    thread.join(60.0)
    assert made == [1]


@pytest.mark.parametrize("takes_newest", [False, True])
def test_new_weights_are_offered_in_the_midst_of_a_step_where_that_is_wanted(takes_newest):
    weights = RecordingWeights()
    schedule = StalenessSchedule(done=0, last=3, max_staleness=1, takes_newest=takes_newest)
    thread = SamplerThread(schedule, weights, weights.produce)
    for number in (1, 2):
        thread.take(number)
        thread.publish(number)
    assert weights.offers == (2 if takes_newest else 0)


def test_without_a_thread_a_step_is_made_when_it_is_taken_and_from_the_newest_weights():
    weights = RecordingWeights()
    in_turn = InTurn(lambda: weights.load(weights.loaded + 1), weights.produce)
    assert weights.loads == []
    assert in_turn.take(5) == (5, 0)
    assert in_turn.measure(lambda: weights.loaded) == 1
