"""The staleness schedule: what the samplers do next and with which weights.

Weights are counted in steps: version v is the result of v steps. With `max_staleness` k, all of step n is sampled from
version n - 1 - k, while the k steps before it are trained on:

    k = 0    sample 1 | train 1 | sample 2 | train 2 | ...
    k = 1    sample 1 | sample 2, train 1 | sample 3, train 2 | ...     step n from version n - 2

Nothing depends on which process is faster, so a run can be repeated. With `takes_newest` a step begins as early as
that, but from the newest version. No thread, clock or process here; `simulate` has a clock that is computed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


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
