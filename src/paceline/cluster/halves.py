"""Both halves of a step on a cluster, as the loop sees them: one thread of the driver samples, the other trains."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.checkpoint import Checkpoint, Progress
from paceline.cluster.agenda import Agenda
from paceline.cluster.consumers import Consumers, Weights
from paceline.cluster.fleet import Fleet
from paceline.cluster.production import Production
from paceline.cluster.simulation import simulate
from paceline.cluster.timings import step_seconds
from paceline.config import Config
from paceline.learner import UpdateStats
from paceline.rollouts import SharedEngine, SharedSampler
from paceline.timeline import Span
from paceline.train import (
    SHARED,
    Feed,
    Handover,
    Measurement,
    Meter,
    Prepared,
    Produced,
    prompts_of_step,
    training_producer,
)
from paceline.types import RolloutGroup

DRIVER = "driver"
"""The row of a timeline that shows what the others are waited for."""


@dataclass(kw_only=True, slots=True)
class Versions:
    """The weights that producers may still be asked to take, and how they get them: a `Crew`."""

    fleet: Fleet
    kept: dict[int, Weights] = field(default_factory=dict)
    _handover: Handover = field(init=False, default=SHARED)

    def load(self, version: int) -> None:
        """See `Crew`."""
        started = time.perf_counter()
        weights = self.kept[version]
        self.fleet.bring_to("load", weights.manifest, *weights.buckets)
        before, seconds = self._handover, time.perf_counter() - started
        self._handover = Handover(seconds=before.seconds + seconds, nbytes=before.nbytes + weights.manifest.nbytes)

    def take_handover(self) -> Handover:
        """What was loaded since this was last asked."""
        taken, self._handover = self._handover, SHARED
        return taken

    def forget(self, older_than: int) -> None:
        """See `Crew`."""
        for version in [version for version in list(self.kept) if version < older_than]:  # another thread adds to it
            del self.kept[version]


class ClusterHalves:
    """`Halves` of which the producers' works ahead by as many steps as `max_staleness` allows."""

    def __init__(
        self, config: Config, prepared: Prepared, feed: Feed, *, consumers: Consumers, fleet: Fleet, done: int
    ) -> None:
        """`done` is the number of steps that the consumers' weights have seen."""
        self._consumers, self._fleet, self._recorder = consumers, fleet, fleet.recorder
        self._newest = consumers.weights(done)
        self._versions = Versions(fleet=fleet, kept={done: self._newest})
        producer = training_producer(config, SharedSampler(workers=fleet))

        def produce(number: int) -> Produced:
            started = time.perf_counter()
            count = prompts_of_step(number, config.loop, num_tasks=len(feed.tasks))
            batch = producer.make(feed.take, count)
            handover = self._versions.take_handover()
            seconds = handover.seconds + time.perf_counter() - started
            return Produced(batch=batch, position=feed.position, seconds=seconds, handover=handover)

        self._max_staleness = config.cluster.max_staleness
        self._continues = config.cluster.on_new_weights == "continue"
        agenda = Agenda(
            done=done,
            last=prepared.total_steps,
            max_staleness=self._max_staleness,
            takes_newest=self._continues,
        )
        self._production = Production(agenda, self._versions, produce)

    @property
    def policy_version(self) -> int:
        """See `Halves`."""
        return self._newest.manifest.policy_version

    def produce(self, number: int) -> Produced:
        """See `Halves`."""
        with self._recorder.span(DRIVER, f"wait for the rollouts of {number}"):
            found: Produced = self._production.take(number)
        return found

    def update(self, number: int, groups: Sequence[RolloutGroup]) -> tuple[UpdateStats, float]:
        """See `Halves`."""
        with self._recorder.span(DRIVER, f"update {number}"):
            found, self._newest = self._consumers.update(number, groups, like=self._newest.manifest)
        self._versions.kept[number] = self._newest
        self._production.publish(number)
        if self._continues:
            # after it is published: the next step is then begun with these at least, and no producer goes back
            self._fleet.tell("offer", self._newest.manifest, *self._newest.buckets)
        return found.stats, found.learning_rate

    def measure(self, meter: Meter, *, step: int) -> Measurement:
        """See `Halves`."""
        engine = SharedEngine(workers=self._fleet)
        with self._recorder.span(DRIVER, f"evaluate {step}"):
            found: Measurement = self._production.measure(lambda: meter.measure(engine, step=step))
        return found

    def save(self, root: Path, progress: Progress, protected: Collection[Path]) -> Checkpoint:
        """See `Halves`. Consumers write it, so `root` must be theirs too."""
        with self._recorder.span(DRIVER, f"checkpoint {progress.step}"):
            found: Checkpoint = self._consumers.ask_all("save", root.absolute(), progress, protected)
        return found

    def export(self, folder: Path) -> None:
        """See `Halves`."""
        self._consumers.ask_all("export", folder.absolute())

    def news(self) -> list[str]:
        """See `Halves`."""
        taken, self._fleet.news = self._fleet.news, []
        return taken

    def foresee(self, steps: Sequence[Mapping[str, Any]]) -> float | None:
        """See `Halves`."""
        return simulate([step_seconds(one) for one in steps], max_staleness=self._max_staleness).recorded[-1]

    def spans(self) -> list[Span]:
        """See `Halves`."""
        return self._recorder.take()

    def close(self) -> None:
        """Sample and train nothing any more, and end all processes."""
        self._production.close()
        self._fleet.workers.end()
        self._consumers.end()
        self._production.join()
