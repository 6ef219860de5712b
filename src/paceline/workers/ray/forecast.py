"""Forecast of a cluster: seconds per step for every split and staleness, and which to take."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from paceline.training.rollouts.sharing import even_shares
from paceline.workers.ray.scaling import Cost, StepWork, fit_cost, sampling_work, update_work
from paceline.workers.ray.simulation import Pace, StepSeconds, steady_pace
from paceline.workers.ray.timings import MeasuredRun, MeasuredStep

STALENESSES = (0, 1, 2, 3)
WORTH = 1.05
"""Speed-up factor below which neither another process nor staler weights is worth it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSplit:
    """A number of producers and consumers with a staleness, and its expected pace."""

    num_producers: int
    num_consumers: int
    max_staleness: int
    pace: Pace

    @property
    def effort(self) -> tuple[int, int]:
        """Cost of a split: number of processes, then staleness."""
        return self.num_producers + self.num_consumers, self.max_staleness


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """All splits, and one process for comparison."""

    one_process: float
    """Seconds per step where one process samples and trains in turn."""
    splits: tuple[ClusterSplit, ...]

    def at(self, num_producers: int, num_consumers: int, max_staleness: int) -> ClusterSplit:
        """The split with these numbers."""
        layout = (num_producers, num_consumers, max_staleness)
        (found,) = (s for s in self.splits if (s.num_producers, s.num_consumers, s.max_staleness) == layout)
        return found

    @property
    def advice(self) -> ClusterSplit | None:
        """Cheapest of the splits within `WORTH` of the fastest; None if one process is as good."""
        least = min(split.pace.seconds for split in self.splits)
        near = [split for split in self.splits if split.pace.seconds <= WORTH * least]
        found = min(near, key=lambda split: (split.effort, split.pace.seconds))
        return found if self.one_process > WORTH * found.pace.seconds else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Cost of sampling and of updates."""

    sampling: Cost
    update: Cost


def make_forecast(measured: MeasuredRun, *, producers: Sequence[int], consumers: Sequence[int]) -> Forecast:
    """Forecast for every pair of these numbers."""
    costs = fit_costs(measured)
    splits = []
    for num_producers, num_consumers in product(producers, consumers):
        steps = [seconds_with(step, num_producers, num_consumers, measured, costs) for step in measured.steps]
        splits += [
            ClusterSplit(
                num_producers=num_producers,
                num_consumers=num_consumers,
                max_staleness=staleness,
                pace=steady_pace(steps, max_staleness=staleness),
            )
            for staleness in STALENESSES
        ]
    alone = [seconds_with(step, 1, 1, measured, costs) for step in measured.steps]
    hand_over = fmean(step.hand_over for step in measured.steps) if measured.is_cluster else 0.0
    return Forecast(
        one_process=fmean(one.produce + one.update + one.record for one in alone) - hand_over, splits=tuple(splits)
    )


def fit_costs(measured: MeasuredRun) -> Costs:
    """Fit both costs to the measured steps."""
    steps = measured.steps
    return Costs(
        sampling=fit_cost(
            [_sampling(step, measured.num_producers, measured.slots) for step in steps],
            [step.generate for step in steps],
        ),
        update=fit_cost(
            [update_work(step.tokens_forwarded, num_consumers=measured.num_consumers) for step in steps],
            [step.update for step in steps],
        ),
    )


def seconds_with(
    step: MeasuredStep, num_producers: int, num_consumers: int, measured: MeasuredRun, costs: Costs
) -> StepSeconds:
    """A measured step's phases with other numbers of processes, scaled in proportion where they differ."""
    sampling = [_sampling(step, count, measured.slots) for count in (measured.num_producers, num_producers)]
    updating = [
        update_work(step.tokens_forwarded, num_consumers=count) for count in (measured.num_consumers, num_consumers)
    ]
    scored = _largest_share(step, num_producers) / _largest_share(step, measured.num_producers)
    return StepSeconds(
        produce=costs.sampling.in_proportion(step.generate, *sampling) + step.reward * scored + step.hand_over,
        update=costs.update.in_proportion(step.update, *updating),
        record=step.record,
    )


def _sampling(step: MeasuredStep, num_producers: int, slots: int) -> StepWork:
    return sampling_work(step.lengths, num_producers=num_producers, slots=slots)


def _largest_share(step: MeasuredStep, num_producers: int) -> int:
    """Number of groups of the producer that has most of them."""
    largest: int = max(share.stop - share.start for share in even_shares(len(step.lengths), num_producers))
    return largest
