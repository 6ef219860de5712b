"""What producers do next: every step once, in order, never from weights older than allowed, whatever takes how long."""

import heapq
import itertools
import random

import pytest

from paceline.cluster.agenda import Agenda, Job

SCHEDULES = 10_000


class Simulated:
    """A run on a simulated clock: producers work the agenda off, a consumer trains, durations are drawn."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.staleness, self.done = self.chance.randrange(5), self.chance.choice([0, 0, 3])
        self.last = self.done + self.chance.randint(1, 12)
        self.agenda = Agenda(done=self.done, last=self.last, max_staleness=self.staleness)
        self.events: list[tuple[float, int, str, Job | int]] = []
        self.order = itertools.count()
        self.clock = 0.0
        self.working: Job | None = None
        self.training = self.trained = self.done
        self.produced: list[Job] = []
        self.measured: list[Job] = []
        self.kept = {self.done}
        self.most_kept = 1

    def run(self) -> "Simulated":
        self.begin()
        while self.events:
            self.clock, _, kind, what = heapq.heappop(self.events)
            getattr(self, kind)(what)
            self.begin()
        return self

    def begin(self) -> None:
        job = self.agenda.next()
        if self.working is None and job is not None:
            assert job.version in self.kept
            self.working = job
            self.later("job_done", job)
            self.kept = {version for version in self.kept if version >= self.agenda.oldest_needed}
        if self.training == self.trained and self.trained < len(self.produced) + self.done:
            self.training = self.trained + 1
            self.later("step_done", self.training)

    def later(self, kind: str, what: Job | int) -> None:
        duration = self.chance.choice([0.0, self.chance.random(), 10 * self.chance.random()])
        heapq.heappush(self.events, (self.clock + duration, next(self.order), kind, what))

    def job_done(self, job: Job) -> None:
        self.agenda.finish(job)
        (self.produced if job.kind == "produce" else self.measured).append(job)
        self.working = None

    def step_done(self, number: int) -> None:
        self.trained = number
        self.kept.add(number)
        self.most_kept = max(self.most_kept, len(self.kept))
        self.agenda.publish(number)
        if self.chance.random() < 0.2:
            self.agenda.want_measurement()


@pytest.fixture(scope="module")
def runs() -> list[Simulated]:
    return [Simulated(seed).run() for seed in range(SCHEDULES)]


def test_every_step_is_sampled_once_in_order_and_trained_to_the_last(runs):
    for one in runs:
        assert [job.number for job in one.produced] == list(range(one.done + 1, one.last + 1))
        assert one.trained == one.last


def test_no_step_is_sampled_from_weights_older_than_the_bound_or_newer_than_there_are(runs):
    for one in runs:
        for job in one.produced:
            assert job.number - 1 - job.version <= one.staleness
            assert one.done <= job.version <= job.number - 1


def test_which_weights_a_step_is_sampled_from_does_not_depend_on_how_long_anything_takes(runs):
    for one in runs:
        assert [job.version for job in one.produced] == [
            max(one.done, number - 1 - one.staleness) for number in range(one.done + 1, one.last + 1)
        ]


def test_measurements_are_of_the_newest_weights_when_they_were_asked_for(runs):
    assert sum(len(one.measured) for one in runs) > SCHEDULES
    for one in runs:
        assert all(job.version == job.number for job in one.measured)
        assert [job.number for job in one.measured] == sorted(job.number for job in one.measured)


def test_no_more_versions_are_kept_than_the_bound_and_the_newest_ask_for(runs):
    for one in runs:
        assert one.most_kept <= one.staleness + 2


def test_with_no_staleness_a_step_waits_for_the_weights_of_the_one_before():
    agenda = Agenda(done=0, last=2, max_staleness=0)
    first = agenda.next()
    assert first == Job(kind="produce", number=1, version=0)
    agenda.finish(first)
    assert agenda.next() is None
    agenda.publish(1)
    assert agenda.next() == Job(kind="produce", number=2, version=1)


def test_with_a_staleness_of_one_the_next_step_is_sampled_while_one_is_trained():
    agenda = Agenda(done=0, last=3, max_staleness=1)
    for number in (1, 2):
        job = agenda.next()
        assert job == Job(kind="produce", number=number, version=0)
        agenda.finish(job)
    assert agenda.next() is None  # step 3 is sampled from what step 1 makes


def test_a_measurement_comes_before_the_next_step():
    agenda = Agenda(done=0, last=3, max_staleness=1)
    agenda.want_measurement()
    assert agenda.next() == Job(kind="measure", number=0, version=0)
    agenda.finish(agenda.next())
    assert agenda.next().kind == "produce"
