"""The staleness schedule: what the samplers do next and with which weights.

Weights are counted in steps: version v is the result of v steps. With `max_staleness` k, all of step n is sampled from
version n - 1 - k, while the k steps before it are trained on:

    k = 0    sample 1 | train 1 | sample 2 | train 2 | ...
    k = 1    sample 1 | sample 2, train 1 | sample 3, train 2 | ...     step n from version n - 2

Nothing depends on which process is faster, so a run can be repeated. With `takes_newest` a step begins as early as
that, but from the newest version. No thread, clock or process here.
"""

from dataclasses import dataclass, field
from typing import Literal


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
