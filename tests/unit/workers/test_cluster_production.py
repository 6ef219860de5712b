"""The thread that works the agenda off: the right weights under every job, failures where they are waited for."""

import threading

import pytest

from paceline.errors import TrainingError
from paceline.workers.ray.agenda import Agenda
from paceline.workers.ray.production import Production


class RecordingCrew:
    """Remembers what it was told, in order; `produce` is a job of its own that says with which weights it ran."""

    def __init__(self) -> None:
        self.loaded = -1
        self.loads: list[int] = []
        self.forgotten = 0

    def load(self, version: int) -> None:
        assert version >= self.forgotten
        self.loaded = version
        self.loads.append(version)

    def forget(self, older_than: int) -> None:
        self.forgotten = older_than

    def produce(self, number: int) -> tuple[int, int]:
        return number, self.loaded


def production(crew: RecordingCrew, *, last: int, max_staleness: int, produce=None) -> Production:
    agenda = Agenda(done=0, last=last, max_staleness=max_staleness)
    return Production(agenda, crew, produce or crew.produce)


def test_in_turn_every_step_is_made_from_the_weights_of_the_one_before():
    crew = RecordingCrew()
    line = production(crew, last=3, max_staleness=0)
    for number in (1, 2, 3):
        assert line.take(number) == (number, number - 1)
        line.publish(number)
    assert crew.loads == [0, 1, 2]


def test_ahead_by_two_the_first_three_steps_are_made_before_any_is_trained():
    crew = RecordingCrew()
    line = production(crew, last=5, max_staleness=2)
    assert [line.take(number) for number in (1, 2, 3)] == [(1, 0), (2, 0), (3, 0)]
    for number in (1, 2):
        line.publish(number)
    assert [line.take(number) for number in (4, 5)] == [(4, 1), (5, 2)]


def test_a_measurement_sees_the_newest_weights_and_the_next_step_its_own():
    crew = RecordingCrew()
    line = production(crew, last=4, max_staleness=1)
    line.take(1)
    line.publish(1)
    assert line.measure(lambda: crew.loaded) == 1
    line.take(2)
    line.publish(2)
    assert line.measure(lambda: crew.loaded) == 2
    assert line.take(3) == (3, 1)


def test_weights_that_no_job_will_ask_for_are_forgotten():
    crew = RecordingCrew()
    line = production(crew, last=5, max_staleness=1)
    for number in (1, 2, 3):
        line.take(number)
        line.publish(number)
    line.take(4)
    line.take(5)
    assert crew.forgotten == 3  # what step 5 was made from


def test_while_steps_are_there_already_only_the_newest_weights_are_kept():
    crew = RecordingCrew()
    agenda = Agenda(done=2, last=9, max_staleness=1, again=6)
    line = Production(agenda, crew, crew.produce)
    for number in (3, 4, 5):
        line.publish(number)
        assert crew.forgotten == number
    assert line.measure(lambda: crew.loaded) == 5
    for number in (6, 7):
        line.publish(number)
    assert line.take(9) == (9, 7)
    assert crew.loads == [5, 7]


def test_what_is_being_made_can_be_waited_for_without_taking_it():
    line = production(RecordingCrew(), last=3, max_staleness=1)
    line.reach(2)
    assert [line.take(number) for number in (1, 2)] == [(1, 0), (2, 0)]


def test_what_ends_the_production_is_raised_where_its_result_is_waited_for():
    def fail(number: int) -> None:
        raise TrainingError(f"no completion of step {number} got a reward")

    line = production(RecordingCrew(), last=2, max_staleness=0, produce=fail)
    with pytest.raises(TrainingError, match="no completion of step 1 got a reward"):
        line.take(1)
    with pytest.raises(TrainingError, match="no completion of step 1 got a reward"):
        line.measure(lambda: None)


def test_nothing_is_begun_after_the_close():
    began, go = threading.Event(), threading.Event()
    crew, made = RecordingCrew(), list[int]()

    def produce(number: int) -> int:
        made.append(number)
        began.set()
        assert go.wait(timeout=60)
        return number

    line = production(crew, last=3, max_staleness=2, produce=produce)
    assert began.wait(timeout=60)
    line.close()
    go.set()
    assert line.take(1) == 1  # the job at hand ends
    line.join()
    assert made == [1]
