"""What samplers do next: every step once, in order, never from weights older than allowed, whatever takes how long."""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest

from paceline.workers.group import MOST_LOSSES, Lost, WorkerGroup, even_shares
from paceline.workers.schedule import ScheduledJob, StalenessSchedule, StepSeconds, simulate

SCHEDULES = 4_000
LONG_SCHEDULES = 100
LONG = 200
"""Steps of a long schedule, at least."""
PROMPTS = 5
"""Of a step."""
LOSSES = 0.02
"""Share of the samplers' calls in which one is lost."""


def duration(chance: random.Random) -> float:
    """Nothing, not long, or ten times as long."""
    return chance.choice([0.0, chance.random(), 10 * chance.random()])


class SimulatedSamplers:
    """`Workers` on a clock that a wait moves on: a call takes a drawn time, some are lost with their sampler.

    A completion says which prompt it is of and which version its sampler had loaded.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.numbers, self.clock = chance, range(chance.randint(1, 3)), 0.0
        self.calls = dict[int, tuple[str, tuple[Any, ...], float]]()
        self.loaded: list[int | None] = [None] * len(self.numbers)
        self.lost_with = Counter[tuple[str, tuple[Any, ...]]]()
        self.replaced = 0

    def start(self, workers: Collection[int], method: str, arguments: tuple[Any, ...]) -> None:
        for worker in workers:
            assert worker not in self.calls, "one call at a time"
            self.calls[worker] = method, arguments, self.clock + duration(self.chance)

    def wait(self, busy: Collection[int]) -> int:
        first = min(busy, key=lambda worker: self.calls[worker][2])
        self.clock = max(self.clock, self.calls[first][2])
        return first

    def result(self, worker: int) -> list[tuple[int, int | None]]:
        method, arguments, _ = self.calls.pop(worker)
        call = method, arguments
        if self.lost_with[call] < MOST_LOSSES - 1 and self.chance.random() < LOSSES:
            self.lost_with[call] += 1
            raise Lost("gone")
        if method == "load":
            (self.loaded[worker],) = arguments
            return []
        return [(prompt, self.loaded[worker]) for prompt in arguments[0]]

    def replace(self, worker: int) -> None:
        self.loaded[worker], self.replaced = None, self.replaced + 1

    def end(self) -> None:
        raise AssertionError("nobody ends these")


class Simulated:
    """A run on a simulated clock: samplers follow the schedule, a trainer trains, durations and losses are drawn."""

    def __init__(self, seed: int, *, least: int = 1, most: int = 12) -> None:
        self.chance = random.Random(seed)
        self.staleness, self.done = self.chance.randrange(5), self.chance.choice([0, 0, 3])
        self.last = self.done + self.chance.randint(least, most)
        self.newest = self.chance.random() < 0.5
        self.schedule = StalenessSchedule(
            done=self.done, last=self.last, max_staleness=self.staleness, takes_newest=self.newest
        )
        self.samplers = SimulatedSamplers(self.chance)
        self.group = WorkerGroup(self.samplers, "sampler")
        self.events: list[tuple[float, int, str, ScheduledJob | int]] = []
        self.order = itertools.count()
        self.clock = 0.0
        self.working: ScheduledJob | None = None
        self.loaded: int | None = None
        self.training = self.trained = self.done
        self.produced: list[ScheduledJob] = []
        self.measured: list[ScheduledJob] = []
        self.published_at_end: list[int] = []
        self.completions: list[list[tuple[int, int | None]]] = []
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
        job = self.schedule.next()
        if self.working is None and job is not None:
            assert job.version in self.kept
            self.working = job
            self.later("job_done", job, self.work(job))
            self.kept = {version for version in self.kept if version >= self.schedule.oldest_needed}
        if self.training == self.trained and self.trained < len(self.produced) + self.done:
            self.training = self.trained + 1
            self.later("step_done", self.training, duration(self.chance))

    def work(self, job: ScheduledJob) -> float:
        """The time that the samplers need for a job."""
        self.samplers.clock = self.clock
        if self.loaded != job.version:
            self.group.bring_to("load", job.version)
            self.loaded = job.version
        if job.kind == "produce":
            prompts = range(PROMPTS * (job.number - 1), PROMPTS * job.number)
            shares = [(prompts[share],) for share in even_shares(PROMPTS, self.group.count)]
            self.completions.append([one for share in self.group.share_out("sample", shares) for one in share])
        return self.samplers.clock - self.clock

    def later(self, kind: str, what: ScheduledJob | int, seconds: float) -> None:
        heapq.heappush(self.events, (self.clock + seconds, next(self.order), kind, what))

    def job_done(self, job: ScheduledJob) -> None:
        self.schedule.finish(job)
        (self.produced if job.kind == "produce" else self.measured).append(job)
        if job.kind == "produce":
            self.published_at_end.append(self.schedule.published)
        self.working = None

    def step_done(self, number: int) -> None:
        self.trained = number
        self.kept.add(number)
        self.most_kept = max(self.most_kept, len(self.kept))
        self.schedule.publish(number)
        if self.chance.random() < 0.2:
            self.schedule.want_measurement()


@pytest.fixture(scope="module")
def runs() -> list[Simulated]:
    short = [Simulated(seed).run() for seed in range(SCHEDULES)]
    long = [Simulated(seed, least=LONG, most=LONG + 50).run() for seed in range(LONG_SCHEDULES)]
    return short + long


def test_every_step_is_sampled_once_in_order_and_trained_to_the_last(runs):
    for one in runs:
        assert [job.number for job in one.produced] == list(range(one.done + 1, one.last + 1))
        assert one.trained == one.last


def test_no_prompt_is_lost_or_doubled_whichever_samplers_are_lost(runs):
    assert sum(one.samplers.replaced for one in runs) > LONG_SCHEDULES
    for one in runs:
        prompts = [prompt for step in one.completions for prompt, _ in step]
        assert prompts == list(range(PROMPTS * one.done, PROMPTS * one.last))


def test_every_completion_is_of_the_version_that_its_step_asks_for(runs):
    for one in runs:
        for job, step in zip(one.produced, one.completions, strict=True):
            assert {version for _, version in step} == {job.version}


def test_no_step_is_sampled_from_weights_older_than_the_bound_or_newer_than_there_are(runs):
    for one in runs:
        for job in one.produced:
            assert job.number - 1 - job.version <= one.staleness
            assert one.done <= job.version <= job.number - 1


def test_no_weights_that_are_published_while_a_step_is_sampled_are_newer_than_those_that_it_trains(runs):
    assert any(job.version < end for one in runs for job, end in zip(one.produced, one.published_at_end, strict=True))
    for one in runs:
        for job, end in zip(one.produced, one.published_at_end, strict=True):
            assert job.version <= end <= job.number - 1


def test_no_step_is_begun_from_weights_older_than_some_step_before_it_could_have_taken(runs):
    for one in runs:
        if one.newest:
            begun = [job.version for job in one.produced]
            assert all(end <= version for end, version in zip(one.published_at_end, begun[1:], strict=False))


def test_which_weights_a_step_is_sampled_from_does_not_depend_on_how_long_anything_takes(runs):
    for one in runs:
        assert one.newest or [job.version for job in one.produced] == [
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
    schedule = StalenessSchedule(done=0, last=2, max_staleness=0)
    first = schedule.next()
    assert first == ScheduledJob(kind="produce", number=1, version=0)
    schedule.finish(first)
    assert schedule.next() is None
    schedule.publish(1)
    assert schedule.next() == ScheduledJob(kind="produce", number=2, version=1)


def test_with_a_staleness_of_one_the_next_step_is_sampled_while_one_is_trained():
    schedule = StalenessSchedule(done=0, last=3, max_staleness=1)
    for number in (1, 2):
        job = schedule.next()
        assert job == ScheduledJob(kind="produce", number=number, version=0)
        schedule.finish(job)
    assert schedule.next() is None  # step 3 is sampled from what step 1 makes


def test_the_newest_weights_are_taken_where_that_is_wanted_and_no_step_is_begun_earlier():
    schedule = StalenessSchedule(done=0, last=4, max_staleness=2, takes_newest=True)
    for number in (1, 2):
        job = schedule.next()
        assert job == ScheduledJob(kind="produce", number=number, version=0)
        schedule.finish(job)
    schedule.publish(1)
    third = schedule.next()
    assert third == ScheduledJob(kind="produce", number=3, version=1)  # and not 0
    assert schedule.oldest_needed == 1
    schedule.finish(third)
    schedule.finish(schedule.next())
    assert schedule.next() is None


def test_a_measurement_comes_before_the_next_step():
    schedule = StalenessSchedule(done=0, last=3, max_staleness=1)
    schedule.want_measurement()
    assert schedule.next() == ScheduledJob(kind="measure", number=0, version=0)
    schedule.finish(schedule.next())
    assert schedule.next().kind == "produce"


def test_a_run_that_has_the_steps_from_before_its_checkpoint_goes_on_in_the_order_of_one_that_was_not_stopped():
    unbroken, jobs = StalenessSchedule(done=0, last=6, max_staleness=2), list[ScheduledJob]()
    again, later = StalenessSchedule(done=3, last=6, max_staleness=2, again=2), list[ScheduledJob]()
    for version in range(1, 7):
        for schedule, found in ((unbroken, jobs), (again, later)):
            while (job := schedule.next()) is not None:
                schedule.finish(job)
                found.append(job)
        unbroken.publish(version)
        if version > 3:
            again.publish(version)
    # steps 4 and 5 are there: 6 is the first from the checkpoint's own weights
    assert later == [job for job in jobs if job.number > 5] == [ScheduledJob(kind="produce", number=6, version=3)]


# --- the schedule on a simulated clock: worked out by hand, and laws of any schedule


def steps(*seconds: tuple[float, float], record: float = 0.0) -> list[StepSeconds]:
    """Steps of so many seconds of producing and updating."""
    return [StepSeconds(produce=produce, update=update, record=record) for produce, update in seconds]


def pace(given: list[StepSeconds], *, max_staleness: int, rounds: int = 8) -> float:
    """Seconds per step of these steps repeated, once the start no longer shows."""
    done = simulate(given * rounds, max_staleness=max_staleness)
    return (done[-1] - done[-1 - len(given)]) / len(given)


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
    assert pace(steps((produce, update)), max_staleness=max_staleness) == pytest.approx(seconds)


@pytest.mark.parametrize(("max_staleness", "seconds"), [(0, 4.0), (1, 2.5), (2, 2.0)])
def test_more_staleness_evens_out_steps_that_differ(max_staleness, seconds):
    # updates of 2 s beside sampling of 3 s and 1 s in turn: 2 s on average, but one step ahead has to wait for the 3
    assert pace(steps((3.0, 2.0), (1.0, 2.0)), max_staleness=max_staleness) == pytest.approx(seconds)


def test_the_start_by_hand():
    # sampled at 2, 4, then from version 1 which is there at 3: at 6; trained at 3, 5, 7
    assert simulate(steps(*[(2.0, 1.0)] * 3), max_staleness=1) == [3.0, 5.0, 7.0]


def test_writing_down_goes_on_beside_the_next_sampling_even_in_turn():
    assert pace(steps((2.0, 1.0), record=0.5), max_staleness=0) == pytest.approx(3.0)
    assert pace(steps((0.25, 1.0), record=0.5), max_staleness=0) == pytest.approx(1.5)


@pytest.mark.parametrize("max_staleness", range(4))
def test_every_schedule_is_that_of_the_rule_step_n_waits_for_version_n_minus_1_minus_k(max_staleness):
    for seed in range(500):
        ends = simulate(drawn(seed), max_staleness=max_staleness)
        sampled = recorded = 0.0
        published = [0.0]  # version 0 is there at the start
        for index, step in enumerate(drawn(seed)):
            sampled = max(sampled, published[max(0, index - max_staleness)]) + step.produce
            published.append(max(sampled, recorded) + step.update)
            recorded = published[-1] + step.record
            assert ends[index] == pytest.approx(recorded)


def test_more_staleness_is_never_slower_and_nothing_is_faster_than_its_slower_side():
    for seed in range(500):
        given = drawn(seed)
        ends = [simulate(given, max_staleness=staleness)[-1] for staleness in range(5)]
        assert ends == sorted(ends, reverse=True)
        longer = max(sum(one.produce for one in given), sum(one.update + one.record for one in given))
        assert ends[-1] >= longer - 1e-9
        assert pace(given, max_staleness=4) >= longer / len(given) - 1e-9
