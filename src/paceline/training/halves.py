"""The two halves of a step as the loop sees them, and both in this process around one set of weights."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from paceline.checkpoints.finding import Checkpoint, TrainingState
from paceline.config.sections import Config
from paceline.runtime.timeline import Recorder, Span
from paceline.training.assembly import Parts, assemble
from paceline.training.feed import Feed, prompts_of_step
from paceline.training.footprint import Footprint
from paceline.training.learner.stats import UpdateStats
from paceline.training.produced import Produced
from paceline.training.records import consumer_sentences, engine_sentences
from paceline.training.rollout_journal import Journal
from paceline.training.setup.measuring import Measurement, Meter
from paceline.training.setup.prepared import Prepared
from paceline.types import RolloutGroup

HERE = "this process"
"""The row of a timeline that has no other."""


class Halves(Protocol):
    """Both halves, wherever they run. Steps are asked for in order, each to be produced and then updated with."""

    @property
    def policy_version(self) -> int:
        """Updates that the weights have seen."""

    def begin(self, journal: Journal) -> None:
        """Go on behind the steps whose rollouts `journal` has; called once, before anything is produced."""

    def produce(self, number: int) -> Produced:
        """The rollouts of step 1, 2, ..., in the data order: those that the journal has are not made again."""

    def update(self, number: int, groups: Sequence[RolloutGroup]) -> tuple[UpdateStats, float]:
        """All updates of a step, and the learning rate of the last of them."""

    def measure(self, meter: Meter, *, step: int) -> Measurement:
        """A held-out set with the weights as they are."""

    def save(self, root: Path, state: TrainingState, protected: Collection[Path]) -> tuple[str, ...]:
        """Begin a checkpoint of this moment below `root`; those in `protected` stay, however many come after them.

        It may be written while steps follow. The one before it must have been asked for by `saved`.

        Returns:
            What a person should know of it.

        Raises:
            StorageError: it cannot be written.
        """

    def saved(self, *, wait: bool) -> Checkpoint | None:
        """The checkpoint that was begun, once it is on disk; None: it is not yet, and nobody wished to `wait`.

        Raises:
            StorageError: it cannot be written, or is not in time.
        """

    def footprint(self) -> Footprint:
        """What a checkpoint and the final model take on a disk."""

    def export(self, folder: Path) -> None:
        """The trained model, as transformers or peft loads it."""

    def news(self) -> list[str]:
        """What happened since this was last asked that a person should know, a sentence each."""

    def foresee(self, steps: Sequence[Mapping[str, Any]]) -> float | None:
        """Seconds that steps with these records should take, by the phases in their clocks and the order of the work.

        None where one thing simply comes after the other.
        """

    def spans(self) -> list[Span]:
        """What was done where since this was last asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """Halves that are ready, and what a person should know of them."""

    halves: Halves
    sentences: tuple[str, ...]


Place = Callable[[Config, Prepared, Checkpoint | None], AbstractContextManager[Placed]]
"""Builds both halves somewhere, from the checkpoint where there is one, and takes them down when the run is over."""


@dataclass(kw_only=True, slots=True)
class OneProcess:
    """`Halves` that share their weights: what the learner changes the engine sees at once."""

    config: Config
    parts: Parts
    feed: Feed
    recorder: Recorder = field(default_factory=Recorder)
    _journal: Journal = field(init=False)

    @property
    def policy_version(self) -> int:
        """See `Halves`."""
        return self.parts.consumer.policy_version

    def begin(self, journal: Journal) -> None:
        """See `Halves`."""
        self._journal, self.feed.position = journal, journal.position

    def produce(self, number: int) -> Produced:
        """See `Halves`."""
        return self._journal.produce(number, self._make)

    def _make(self, number: int) -> Produced:
        count = prompts_of_step(number, self.config.loop, num_tasks=len(self.feed.tasks))
        started = self.recorder.clock()
        batch = self.parts.producer.make(self.feed.take, count)
        phases = (f"generate {number}", batch.generate_seconds), (f"reward {number}", batch.reward_seconds)
        self.recorder.phases(HERE, started, phases)
        return Produced(batch=batch, position=self.feed.position, seconds=self.recorder.clock() - started)

    def update(self, number: int, groups: Sequence[RolloutGroup]) -> tuple[UpdateStats, float]:
        """See `Halves`."""
        self.parts.engine.rest()
        with self.recorder.span(HERE, f"update {number}"):
            found = self.parts.consumer.update(number, groups)
        with self.recorder.span(HERE, f"publish {number}"):
            self.parts.engine.take_weights(self.policy_version)
        return found

    def measure(self, meter: Meter, *, step: int) -> Measurement:
        """See `Halves`."""
        with self.recorder.span(HERE, f"evaluate {step}"):
            return meter.measure(self.parts.engine, step=step)

    def save(self, root: Path, state: TrainingState, protected: Collection[Path]) -> tuple[str, ...]:
        """See `Halves`."""
        with self.recorder.span(HERE, f"checkpoint {state.step}"):
            return self.parts.consumer.save(root, state, protected)

    def saved(self, *, wait: bool) -> Checkpoint | None:
        """See `Halves`."""
        return self.parts.consumer.saved(wait=wait)

    def footprint(self) -> Footprint:
        """See `Halves`."""
        return self.parts.consumer.footprint()

    def export(self, folder: Path) -> None:
        """See `Halves`."""
        self.parts.consumer.export(folder)

    def news(self) -> list[str]:
        """See `Halves`."""
        return []

    def foresee(self, steps: Sequence[Mapping[str, Any]]) -> float | None:
        """See `Halves`."""
        return None

    def spans(self) -> list[Span]:
        """See `Halves`."""
        return self.recorder.take()


@contextmanager
def in_this_process(config: Config, prepared: Prepared, checkpoint: Checkpoint | None) -> Iterator[Placed]:
    """The `Place` of a run in one process."""
    parts = assemble(config, prepared, checkpoint=checkpoint)
    halves = OneProcess(config=config, parts=parts, feed=make_feed(config, prepared, checkpoint))
    yield Placed(halves=halves, sentences=(*engine_sentences(parts.engine), *consumer_sentences(parts.consumer)))


def make_feed(config: Config, prepared: Prepared, checkpoint: Checkpoint | None) -> Feed:
    """The data order from where the checkpoint left it."""
    return Feed(
        tasks=prepared.tasks.tasks,
        seed=config.loop.seed,
        shuffle=config.data.shuffle,
        position=0 if checkpoint is None else checkpoint.state.position,
    )
