"""The staleness schedule: what the samplers do next and with which weights, and the thread that keeps to it.

Weights are counted in steps: version v is the result of v steps. With `max_staleness` k, all of step n is sampled from
version n - 1 - k, while the k steps before it are trained on:

    k = 0    sample 1 | train 1 | sample 2 | train 2 | ...
    k = 1    sample 1 | sample 2, train 1 | sample 3, train 2 | ...     step n from version n - 2

Nothing depends on which process is faster, so a run can be repeated. With `takes_newest` a step begins as early as
that, but from the newest version. The schedule itself knows no thread, clock or process; `simulate` has a clock that is
computed.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from paceline.runtime.activity import ACTIVITY


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduledJob:
    """One job that all samplers do together."""

    kind: Literal["produce", "measure"]
    number: int
    """Step to sample for; of an evaluation, steps that its weights have seen."""
    version: int
    """Version of the weights to use."""


@dataclass(kw_only=True, slots=True)
class StalenessSchedule:
    """Steps in order, each sampled once; evaluations in between, as soon as they are requested.

    One job is done at a time: earlier steps, refills included, fix the position in the data order.
    """

    done: int
    """Steps completed before the run began, and the version of its first weights."""
    last: int
    """Last step of the run."""
    max_staleness: int
    again: int = 0
    """Number of following steps whose rollouts an earlier attempt has already committed."""
    takes_newest: bool = False
    """Sample each step from the newest weights at its beginning."""
    published: int = field(init=False)
    """Newest version."""
    produced: int = field(init=False)
    """Last step whose rollouts exist."""
    _measurements: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.published = self.done
        self.produced = self.done + self.again

    def publish(self, version: int) -> None:
        """Note that this step was trained on and its weights exist."""
        assert version == self.published + 1
        self.published = version

    def want_measurement(self) -> None:
        """Request an evaluation of the newest weights before any other job."""
        self._measurements.append(self.published)

    def next(self) -> ScheduledJob | None:
        """The next job; None if weights must come first or nothing is left."""
        if self._measurements:
            return ScheduledJob(kind="measure", number=self._measurements[0], version=self._measurements[0])
        number = self.produced + 1
        oldest = self.oldest_for(number)
        if number > self.last or oldest > self.published:
            return None
        return ScheduledJob(kind="produce", number=number, version=self.published if self.takes_newest else oldest)

    def finish(self, job: ScheduledJob) -> None:
        """Note that the job from `next` is done."""
        if job.kind == "measure":
            self._measurements.remove(job.number)
        else:
            assert job.number == self.produced + 1
            self.produced = job.number

    def oldest_for(self, number: int) -> int:
        """Oldest version that a step may be sampled from; a resumed run has none from before its checkpoint."""
        return max(self.done, number - 1 - self.max_staleness)

    @property
    def oldest_needed(self) -> int:
        """Oldest version that any further job will use."""
        if self.takes_newest:
            return min([self.published, *self._measurements])
        # where steps are there already, the next job's weights may not have been made yet, and what is measured has
        return min([self.published, *self._measurements, self.oldest_for(self.produced + 1)])


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSeconds:
    """Duration of one step's phases. All samplers do one job at a time, all trainers one step at a time."""

    produce: float
    """Weights to the samplers, sampling, scoring, completions back."""
    update: float
    """Completions to the trainers, their updates, new weights published."""
    record: float
    """The driver's records; the next job may already run."""


def simulate(steps: Sequence[StepSeconds], *, max_staleness: int) -> list[float]:
    """Seconds from the start of a run of these steps, in the schedule's order, to the end of each of them.

    Evaluations and checkpoints are left out: they take as long in every order.

    >>> turns = [StepSeconds(produce=2.0, update=1.0, record=0.0)] * 3
    >>> simulate(turns, max_staleness=0), simulate(turns, max_staleness=1)
    ([3.0, 6.0, 9.0], [3.0, 5.0, 7.0])
    """
    schedule = StalenessSchedule(done=0, last=len(steps), max_staleness=max_staleness)
    recorded = list[float]()
    ends = dict[str, float]()  # of the phases that are under way
    job: ScheduledJob | None = None
    now = 0.0
    while len(recorded) < len(steps):
        if job is None and (job := schedule.next()) is not None:
            ends["produce"] = now + steps[job.number - 1].produce
        if ends.keys() <= {"produce"} and len(recorded) < schedule.produced:
            ends["update"] = now + steps[len(recorded)].update
        phase, now = min(ends.items(), key=lambda end: end[1])
        del ends[phase]
        if phase == "produce":
            assert job is not None
            schedule.finish(job)
            job = None
        elif phase == "update":
            schedule.publish(len(recorded) + 1)
            ends["record"] = now + steps[len(recorded)].record
        else:
            recorded.append(now)
    return recorded


def step_seconds(record: Mapping[str, Any]) -> StepSeconds:
    """Phases of a step from its line in `metrics.jsonl`."""
    clock = record["clock"]
    return StepSeconds(
        produce=clock["produce"],
        update=clock["update"],
        record=max(0.0, clock["total"] - clock["wait"] - clock["update"]),
    )


_LOOK_UP_SECONDS = 5.0
"""Seconds between two checks that the other thread is alive."""


class SamplerWeights(Protocol):
    """Weight versions that samplers can load; every call has its own deadline."""

    def load(self, version: int) -> None:
        """Sample from this version from now on."""

    def offer(self) -> None:
        """Have samplers take the newest version after their next token."""

    def forget(self, older_than: int) -> None:
        """Drop versions before this one."""


class SamplerThread:
    """Does jobs in the schedule's order, each with the weights that it names. Results wait until they are taken."""

    def __init__(self, schedule: StalenessSchedule, weights: SamplerWeights, produce: Callable[[int], Any]) -> None:
        """`produce` samples the rollouts of a step."""
        self._schedule, self._weights, self._produce = schedule, weights, produce
        self._changed = threading.Condition()
        self._produced = dict[int, Any]()
        self._measures = list[Callable[[], Any]]()
        self._measured = list[Any]()
        self._failure: BaseException | None = None
        self._closed = False
        self._loaded: int | None = None
        self._in_hand: int | None = None  # version of the job that has begun
        ACTIVITY.queues["steps produced and not taken"] = lambda: len(self._produced)
        ACTIVITY.queues["measurements wanted"] = lambda: len(self._measures)
        self._thread = threading.Thread(target=self._work, name="sampler", daemon=True)
        self._thread.start()

    def take(self, number: int) -> Any:
        """Wait for the rollouts of a step and return them; raises whatever ended the thread."""
        with self._changed:
            self._wait_for(lambda: number in self._produced)
            return self._produced.pop(number)

    def reach(self, number: int) -> None:
        """Wait until the rollouts of a step exist, taken or not; raises whatever ended the thread."""
        with self._changed:
            self._wait_for(lambda: self._schedule.produced >= number)

    def publish(self, version: int) -> None:
        """Announce that this version can be loaded."""
        with self._changed:
            self._schedule.publish(version)
            # not by the next job alone: for steps that are there already there is none
            self._forget()
            self._changed.notify_all()
        if self._schedule.takes_newest:
            # after it is published: the next step is then begun with these at least, and no sampler goes back
            self._weights.offer()

    def measure(self, measure: Callable[[], Any]) -> Any:
        """Call `measure` between two jobs, with the newest weights loaded, and return its result."""
        with self._changed:
            self._measures.append(measure)
            self._schedule.want_measurement()
            self._changed.notify_all()
            self._wait_for(lambda: bool(self._measured))
            return self._measured.pop()

    def close(self) -> None:
        """Begin no further job; the current one ends by itself, or with its workers."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def join(self, seconds: float) -> None:
        """Wait for the current job after `close`, so long at most: a daemon thread does not keep the process."""
        self._thread.join(seconds)

    def _wait_for(self, there: Callable[[], bool]) -> None:
        while not there():
            if self._failure is not None:
                raise self._failure
            assert self._thread.is_alive()
            self._changed.wait(_LOOK_UP_SECONDS)

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                if self._loaded != job.version:
                    self._weights.load(job.version)
                    self._loaded = job.version
                with self._changed:
                    self._forget()
                result = self._measures.pop(0)() if job.kind == "measure" else self._produce(job.number)
                with self._changed:
                    self._schedule.finish(job)
                    self._in_hand = None
                    if job.kind == "measure":
                        self._measured.append(result)
                    else:
                        self._produced[job.number] = result
                    self._changed.notify_all()
        except BaseException as failure:  # noqa: BLE001 - not swallowed: whoever waits for a result gets it
            with self._changed:
                self._failure = failure
                self._changed.notify_all()

    def _next(self) -> ScheduledJob | None:
        with self._changed:
            while not self._closed:
                job = self._schedule.next()
                if job is not None:
                    self._in_hand = job.version
                    return job
                self._changed.wait(_LOOK_UP_SECONDS)
        return None

    def _forget(self) -> None:
        """Drop versions that neither the schedule nor the job in hand needs; the lock is held."""
        needed = self._schedule.oldest_needed
        self._weights.forget(needed if self._in_hand is None else min(needed, self._in_hand))


class InTurn:
    """A `SamplerThread` without a thread: the first rank samples, trains and runs the loop one after the other."""

    def __init__(self, renew: Callable[[], None], produce: Callable[[int], Any]) -> None:
        """`renew` brings samplers to the newest weights, `produce` samples the rollouts of a step."""
        self._renew, self._produce = renew, produce

    def take(self, number: int) -> Any:
        """Sample the rollouts of a step."""
        self._renew()
        return self._produce(number)

    def measure(self, measure: Callable[[], Any]) -> Any:
        """Call `measure` with the newest weights loaded, and return its result."""
        self._renew()
        return measure()

    def publish(self, version: int) -> None:
        """Nobody waits for a version."""

    def reach(self, number: int) -> None:
        """Nothing is sampled before it is taken."""

    def close(self) -> None:
        """There is no thread to stop."""

    def join(self, seconds: float) -> None:
        """There is no thread to join."""
