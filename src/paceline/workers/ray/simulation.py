"""The schedule on a simulated clock: when each step would end and who would wait, from the seconds of its phases.

The run's own `StalenessSchedule` gives the order, so a forecast knows no other order than the run. All producers do one
job at a time, all consumers one step at a time:

    produce   weights to the producers, sampling, scoring, completions back
    update    completions to the consumers, their updates, new weights published
    record    the driver's records; the next job may already run

Evaluations and checkpoints are left out: they take as long in every order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from paceline.workers.ray.schedule import ScheduledJob, StalenessSchedule


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSeconds:
    """Duration of one step's phases."""

    produce: float
    update: float
    record: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """End of each step's phases, in seconds from the start."""

    produced: tuple[float, ...]
    published: tuple[float, ...]
    recorded: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Steady pace of a run."""

    seconds: float
    """Seconds per step."""
    producers_wait: float
    """Share of the time in which samplers are idle."""
    consumers_wait: float
    """Share of the time in which nothing is trained on or written down."""


def simulate(steps: Sequence[StepSeconds], *, max_staleness: int) -> Timeline:
    """Simulate a run of these steps from its start.

    >>> turns = [StepSeconds(produce=2.0, update=1.0, record=0.0)] * 3
    >>> simulate(turns, max_staleness=0).recorded, simulate(turns, max_staleness=1).recorded
    ((3.0, 6.0, 9.0), (3.0, 5.0, 7.0))
    """
    schedule = StalenessSchedule(done=0, last=len(steps), max_staleness=max_staleness)
    produced, published, recorded = list[float](), list[float](), list[float]()
    ends = dict[str, float]()  # of the phases that are under way
    job: ScheduledJob | None = None
    now = 0.0
    while len(recorded) < len(steps):
        if job is None and (job := schedule.next()) is not None:
            ends["produce"] = now + steps[job.number - 1].produce
        if ends.keys() <= {"produce"} and len(recorded) < schedule.produced:
            ends["update"] = now + steps[len(recorded)].update
        phase, now = min(ends.items(), key=lambda one: one[1])
        del ends[phase]
        if phase == "produce":
            assert job is not None
            schedule.finish(job)
            job = None
            produced.append(now)
        elif phase == "update":
            published.append(now)
            schedule.publish(len(published))
            ends["record"] = now + steps[len(recorded)].record
        else:
            recorded.append(now)
    return Timeline(produced=tuple(produced), published=tuple(published), recorded=tuple(recorded))


def steady_pace(steps: Sequence[StepSeconds], *, max_staleness: int) -> Pace:
    """Pace of these steps repeated, after the start-up.

    Raises:
        ValueError: no steps.
    """
    if not steps:
        raise ValueError("steps must hold at least one step")
    size = len(steps)
    rounds = 2 + math.ceil((max_staleness + 1) / size)
    done = simulate([*steps] * (rounds + 1), max_staleness=max_staleness).recorded
    seconds = (done[-1] - done[-1 - size]) / size
    return Pace(
        seconds=seconds,
        producers_wait=_idle(fmean(one.produce for one in steps), seconds),
        consumers_wait=_idle(fmean(one.update + one.record for one in steps), seconds),
    )


def _idle(busy: float, seconds: float) -> float:
    return max(0.0, 1 - busy / seconds) if seconds else 0.0
