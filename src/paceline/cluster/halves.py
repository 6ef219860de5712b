"""Both halves of a step on a cluster, as the loop sees them: one thread of the driver samples, the other trains."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from paceline.checkpoint import Checkpoint, Progress
from paceline.cluster.agenda import Agenda
from paceline.cluster.fleet import Fleet, even_shares
from paceline.cluster.production import Production
from paceline.cluster.weights import Manifest
from paceline.config import Config
from paceline.engines import OnFinished, Request, Sampling
from paceline.learner import UpdateStats
from paceline.rollouts import Drawn, Round, merge_rounds
from paceline.train import Feed, Measurement, Meter, Prepared, Produced, prompts_of_step, training_producer
from paceline.types import Completion, RolloutGroup


class Consumer(Protocol):
    """The consumer half in another process."""

    def call(self, method: str, *arguments: object) -> Any:
        """What a method of `ConsumingProcess` gives.

        Raises:
            TrainingError: the process is gone.
            PacelineError: the method raised it.
        """

    def buckets(self, names: Sequence[Sequence[str]]) -> list[Any]:
        """The weights as they are, bucket by bucket, as producers take them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetSampler:
    """A `Sampler`: every producer has a share of the tasks."""

    fleet: Fleet

    def sample(self, drawn: Drawn) -> Round:
        """See `Sampler`."""
        shares = even_shares(len(drawn), self.fleet.workers.count)
        return merge_rounds(self.fleet.share_out("sample", [(drawn[share],) for share in shares]), side_by_side=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetEngine:
    """An `Engine`: every producer completes a share of the prompts. It learns of all completions at once."""

    fleet: Fleet

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, on_finished: OnFinished | None = None
    ) -> list[tuple[Completion, ...]]:
        """See `Engine`."""
        shares = even_shares(len(requests), self.fleet.workers.count)
        answers = self.fleet.share_out("generate", [(requests[share], sampling) for share in shares])
        return [group for answer in answers for group in answer]


@dataclass(kw_only=True, slots=True)
class Versions:
    """The weights that producers may still be asked to take, and how they get them: a `Crew`."""

    fleet: Fleet
    kept: dict[int, tuple[Manifest, list[Any]]] = field(default_factory=dict)

    def load(self, version: int) -> None:
        """See `Crew`."""
        manifest, buckets = self.kept[version]
        self.fleet.bring_to("load", manifest, *buckets)

    def forget(self, older_than: int) -> None:
        """See `Crew`."""
        for version in [version for version in list(self.kept) if version < older_than]:  # another thread adds to it
            del self.kept[version]


class ClusterHalves:
    """`Halves` of which the producers' works ahead by as many steps as `max_staleness` allows."""

    def __init__(self, config: Config, prepared: Prepared, feed: Feed, *, consumer: Consumer, fleet: Fleet, done: int):
        """`done` is the number of steps that the consumer's weights have seen."""
        self._consumer, self._fleet = consumer, fleet
        self._versions = Versions(fleet=fleet)
        self._manifest = self._publish(done)
        producer = training_producer(config, FleetSampler(fleet=fleet))

        def produce(number: int) -> Produced:
            count = prompts_of_step(number, config.loop, num_tasks=len(feed.tasks))
            return Produced(batch=producer.make(feed.take, count), position=feed.position)

        agenda = Agenda(done=done, last=prepared.total_steps, max_staleness=config.cluster.max_staleness)
        self._production = Production(agenda, self._versions, produce)

    @property
    def policy_version(self) -> int:
        """See `Halves`."""
        return self._manifest.policy_version

    def produce(self, number: int) -> Produced:
        """See `Halves`."""
        found: Produced = self._production.take(number)
        return found

    def update(self, number: int, groups: Sequence[RolloutGroup]) -> tuple[UpdateStats, float]:
        """See `Halves`."""
        found: tuple[UpdateStats, float] = self._consumer.call("update", number, groups)
        self._manifest = self._publish(number)
        self._production.publish(number)
        return found

    def measure(self, meter: Meter, *, step: int) -> Measurement:
        """See `Halves`."""
        engine = FleetEngine(fleet=self._fleet)
        found: Measurement = self._production.measure(lambda: meter.measure(engine, step=step))
        return found

    def save(self, root: Path, progress: Progress, protected: Collection[Path]) -> Checkpoint:
        """See `Halves`. The consumer writes it, so `root` must be its own too."""
        found: Checkpoint = self._consumer.call("save", root.absolute(), progress, protected)
        return found

    def export(self, folder: Path) -> None:
        """See `Halves`."""
        self._consumer.call("export", folder.absolute())

    def news(self) -> list[str]:
        """See `Halves`."""
        taken, self._fleet.news = self._fleet.news, []
        return taken

    def close(self) -> None:
        """Sample nothing any more, and end the producers."""
        self._production.close()
        self._fleet.workers.end()
        self._production.join()

    def _publish(self, version: int) -> Manifest:
        manifest: Manifest = self._consumer.call("manifest", version)
        self._versions.kept[version] = (manifest, self._consumer.buckets(manifest.buckets))
        return manifest
