"""What the producers do next and with which weights: the whole of asynchronous running, as arithmetic.

Weights are counted in steps: version v is what v steps have made. With a staleness of k, step n is sampled from version
n - 1 - k, all of it, so that it is being sampled while the k steps before it are trained on:

    k = 0    sample 1 | train 1 | sample 2 | train 2 | ...
    k = 1    sample 1 | sample 2, train 1 | sample 3, train 2 | ...     step n from version n - 2

Nothing depends on who is faster, so a run can be repeated. Unless it takes the newest: then a step is begun as early as
that, but from the newest version that there is. No thread, clock or process here.
"""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduledJob:
    """One thing for all producers to do together."""

    kind: Literal["produce", "measure"]
    number: int
    """The step that is sampled for; or how many the measured weights have seen."""
    version: int
    """Of the weights to do it with."""


@dataclass(kw_only=True, slots=True)
class StalenessSchedule:
    """Steps in order, each sampled once; measurements in between, as soon as they are asked for.

    One job is done at a time: the order of the data is fixed by what earlier steps took, refills included.
    """

    done: int
    """Steps that the run had behind it when it began: its first weights are of this version."""
    last: int
    """The last step of the run."""
    max_staleness: int
    again: int = 0
    """Steps after those whose rollouts are there already: an earlier attempt at the run has made them."""
    takes_newest: bool = False
    """Steps are sampled from the newest weights that there are when they are begun."""
    published: int = field(init=False)
    """The newest version that there is."""
    produced: int = field(init=False)
    """The last step whose rollouts are there."""
    _measurements: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.published = self.done
        self.produced = self.done + self.again

    def publish(self, version: int) -> None:
        """The step of this number was trained on: its weights are there."""
        assert version == self.published + 1
        self.published = version

    def want_measurement(self) -> None:
        """The newest weights are to be measured before anything else is begun."""
        self._measurements.append(self.published)

    def next(self) -> ScheduledJob | None:
        """What can be begun now; None: weights must come first, or nothing is left."""
        if self._measurements:
            return ScheduledJob(kind="measure", number=self._measurements[0], version=self._measurements[0])
        number = self.produced + 1
        oldest = self.oldest_for(number)
        if number > self.last or oldest > self.published:
            return None
        return ScheduledJob(kind="produce", number=number, version=self.published if self.takes_newest else oldest)

    def finish(self, job: ScheduledJob) -> None:
        """The job that `next` gave is done."""
        if job.kind == "measure":
            self._measurements.remove(job.number)
        else:
            assert job.number == self.produced + 1
            self.produced = job.number

    def oldest_for(self, number: int) -> int:
        """The oldest weights that a step may be sampled from; a run that was gone on with has none from before."""
        return max(self.done, number - 1 - self.max_staleness)

    @property
    def oldest_needed(self) -> int:
        """No job will ask for weights before these."""
        if self.takes_newest:
            return min([self.published, *self._measurements])
        # where steps are there already, the next job's weights may not have been made yet, and what is measured has
        return min([self.published, *self._measurements, self.oldest_for(self.produced + 1)])
