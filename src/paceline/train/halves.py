"""The two halves of a step as the loop sees them, and both in this process around one set of weights."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from paceline.checkpoint import Checkpoint, Progress, save_checkpoint
from paceline.config import Config
from paceline.learner import UpdateStats
from paceline.models import export_model
from paceline.rollouts import RolloutBatch
from paceline.schedule import learning_rate
from paceline.train.assembly import Parts, Prepared, assemble, updates_per_step
from paceline.train.feed import Feed, prompts_of_step
from paceline.train.measuring import Measurement, Meter
from paceline.train.observing import is_due
from paceline.train.records import path_sentences
from paceline.types import RolloutGroup


@dataclass(frozen=True, kw_only=True, slots=True)
class Produced:
    """A step's rollouts, and where the data order stands behind them."""

    batch: RolloutBatch
    position: int


class Halves(Protocol):
    """Both halves, wherever they run. Steps are asked for in order, each to be produced and then updated with."""

    @property
    def policy_version(self) -> int:
        """Updates that the weights have seen."""

    def produce(self, number: int) -> Produced:
        """The rollouts of step 1, 2, ..., in the data order."""

    def update(self, number: int, groups: Sequence[RolloutGroup]) -> tuple[UpdateStats, float]:
        """All updates of a step, and the learning rate of the last of them."""

    def measure(self, meter: Meter, *, step: int) -> Measurement:
        """A held-out set with the weights as they are."""

    def save(self, root: Path, progress: Progress, protected: Collection[Path]) -> Checkpoint:
        """A checkpoint of this moment below `root`; those in `protected` stay, however many come after them."""

    def export(self, folder: Path) -> None:
        """The trained model, as transformers or peft loads it."""

    def news(self) -> list[str]:
        """What happened since this was last asked that a person should know, a sentence each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """Halves that are ready, and what a person should know of them."""

    halves: Halves
    sentences: tuple[str, ...]


Place = Callable[[Config, Prepared, Checkpoint | None], AbstractContextManager[Placed]]
"""Builds both halves somewhere, from the checkpoint where there is one, and takes them down when the run is over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OneProcess:
    """`Halves` that share their weights: what the learner changes the engine sees at once."""

    config: Config
    prepared: Prepared
    parts: Parts
    feed: Feed

    @property
    def policy_version(self) -> int:
        """See `Halves`."""
        return self.parts.learner.policy_version

    def produce(self, number: int) -> Produced:
        """See `Halves`."""
        count = prompts_of_step(number, self.config.loop, num_tasks=len(self.feed.tasks))
        batch = self.parts.producer.make(self.feed.take, count)
        return Produced(batch=batch, position=self.feed.position)

    def update(self, number: int, groups: Sequence[RolloutGroup]) -> tuple[UpdateStats, float]:
        """See `Halves`."""
        self.parts.engine.rest()
        stats, rate = update(self.config, self.prepared, self.parts, number, groups)
        self.parts.engine.take_weights(self.policy_version)
        return stats, rate

    def measure(self, meter: Meter, *, step: int) -> Measurement:
        """See `Halves`."""
        return meter.measure(self.parts.engine, step=step)

    def save(self, root: Path, progress: Progress, protected: Collection[Path]) -> Checkpoint:
        """See `Halves`."""
        return save(self.config, self.prepared, self.parts, root, progress, protected)

    def export(self, folder: Path) -> None:
        """See `Halves`."""
        export_model(self.parts.policy, self.prepared.tokenizer, folder, merge=self.config.lora.merge_lora)

    def news(self) -> list[str]:
        """See `Halves`."""
        return []


@contextmanager
def in_this_process(config: Config, prepared: Prepared, checkpoint: Checkpoint | None) -> Iterator[Placed]:
    """The `Place` of a run in one process."""
    parts = assemble(config, prepared, checkpoint=checkpoint)
    halves = OneProcess(config=config, prepared=prepared, parts=parts, feed=make_feed(config, prepared, checkpoint))
    yield Placed(halves=halves, sentences=tuple(path_sentences(parts)))


def make_feed(config: Config, prepared: Prepared, checkpoint: Checkpoint | None) -> Feed:
    """The data order from where the checkpoint left it."""
    return Feed(
        tasks=prepared.tasks.tasks,
        seed=config.loop.seed,
        shuffle=config.data.shuffle,
        position=0 if checkpoint is None else checkpoint.progress.position,
    )


def update(
    config: Config, prepared: Prepared, parts: Parts, number: int, groups: Sequence[RolloutGroup]
) -> tuple[UpdateStats, float]:
    """The consumer half of a step: all its updates, and the learning rate of the last of them.

    A scheduler of torch counts every update, also those that a step without signal does not make.
    """
    learner, stepped, optim = parts.learner, parts.rate, config.optim
    if stepped is None:
        rate = learning_rate(
            number,
            peak=optim.learning_rate,
            schedule=optim.lr_schedule,
            warmup_steps=optim.warmup_steps,
            total_steps=prepared.total_steps,
            min_ratio=optim.min_lr_ratio,
        )
        stats = learner.step(groups, learning_rate=rate)
    else:
        before = learner.policy_version
        stats = learner.step(groups, learning_rate=None, after_update=stepped.advance)
        stepped.advance(updates_per_step(config) - (learner.policy_version - before))
        rate = stepped.last
    if is_due(number, config.loss.ref_sync_steps):
        learner.sync_reference()
    return stats, rate


def save(
    config: Config, prepared: Prepared, parts: Parts, root: Path, progress: Progress, protected: Collection[Path]
) -> Checkpoint:
    """Everything that makes the consumer half's next step, below `root`."""
    return save_checkpoint(
        root,
        progress,
        loaded=parts.policy,
        tokenizer=prepared.tokenizer,
        optimizer=parts.learner.optimizer,
        keep=config.loop.save_total_limit,
        reference=parts.learner.reference if config.loss.ref_sync_steps else None,
        protected=protected,
    )
