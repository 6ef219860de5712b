"""Whether a cluster will pay: seconds per step for every split and staleness, and which of them to take."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from paceline.cluster.scaling import Cost, Work, fit_cost, largest_work
from paceline.cluster.simulation import Pace, StepSeconds, steady_pace
from paceline.cluster.timings import Measured, MeasuredStep

STALENESSES = (0, 1, 2, 3)
WORTH = 1.05
"""A gain below this factor is worth neither another process nor staler weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """A way to lay a run out, and what is to be expected of it."""

    num_producers: int
    max_staleness: int
    pace: Pace


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """All splits, fewest producers first and then the least staleness, beside one process."""

    one_process: float
    """Seconds per step where one process samples and trains in turn."""
    splits: tuple[Split, ...]

    def at(self, num_producers: int, max_staleness: int) -> Split:
        """One of them."""
        (found,) = (s for s in self.splits if (s.num_producers, s.max_staleness) == (num_producers, max_staleness))
        return found

    @property
    def advice(self) -> Split | None:
        """The first split beyond which no gain is worth its cost; None: one process is as good."""
        least = min(split.pace.seconds for split in self.splits)
        found = next(split for split in self.splits if split.pace.seconds <= WORTH * least)
        return found if self.one_process > WORTH * found.pace.seconds else None


def make_forecast(measured: Measured, producers: Sequence[int]) -> Forecast:
    """For numbers of producers in ascending order."""
    works = [_work(step, measured.num_producers, measured.slots) for step in measured.steps]
    cost = fit_cost(works, [step.generate for step in measured.steps])
    splits = []
    for count in producers:
        steps = [seconds_with(step, count, measured, cost) for step in measured.steps]
        splits += [
            Split(num_producers=count, max_staleness=staleness, pace=steady_pace(steps, max_staleness=staleness))
            for staleness in STALENESSES
        ]
    alone = [seconds_with(step, 1, measured, cost) for step in measured.steps]
    hand_over = fmean(step.hand_over for step in measured.steps) if measured.is_cluster else 0.0
    return Forecast(
        one_process=fmean(one.produce + one.update + one.record for one in alone) - hand_over, splits=tuple(splits)
    )


def seconds_with(step: MeasuredStep, num_producers: int, measured: Measured, cost: Cost) -> StepSeconds:
    """A measured step's phases with as many producers: as measured where they are as many, else in proportion."""
    before, after = (_work(step, count, measured.slots) for count in (measured.num_producers, num_producers))
    sampling = step.generate * cost.seconds(after) / cost.seconds(before)
    scoring = step.reward * after.completions / before.completions
    return StepSeconds(produce=sampling + scoring + step.hand_over, update=step.update, record=step.record)


def _work(step: MeasuredStep, num_producers: int, slots: int) -> Work:
    return largest_work(step.lengths, num_producers=num_producers, slots=slots)
