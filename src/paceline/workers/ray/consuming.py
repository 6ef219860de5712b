"""A trainer's process on a cluster: one rank with learner, optimiser and checkpoints."""

import os
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.checkpoints.finding import Checkpoint, TrainingState, read_checkpoint
from paceline.config.sections import Config
from paceline.models.parallel.mesh_ranks import make_ranks
from paceline.models.parallel.process_group import Meeting, process_group
from paceline.models.parallel.ranks import ONE_RANK, Ranks
from paceline.models.pretrained import load_tokenizer
from paceline.runtime.devices import choose_device
from paceline.training.footprint import Footprint
from paceline.training.learner.stats import UpdateStats
from paceline.training.records import trainer_sentences
from paceline.training.setup.run_inputs import RunSize
from paceline.training.trainer import make_trainer
from paceline.types import RolloutGroup
from paceline.workers.ray.weights import Manifest, manifest_of, read_bucket

COLLECTIVE_SECONDS = 1800.0
"""Timeout of a collective, in seconds; ranks' shares of an update differ in size. The driver finds a rank that is gone
or stopped, and sooner."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerContext:
    """Rank and rendezvous of one trainer process."""

    rank: int
    size: int
    meeting: Meeting | None
    """None for a single process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerUpdate:
    """Result of a step's updates, and the manifest of the new weights."""

    stats: UpdateStats
    learning_rate: float
    manifest: Manifest


class ConsumingProcess:
    """The methods of a trainer's actor. All ranks get the same calls, and save and export together."""

    def __init__(
        self, config: Config, directory: Path, context: ConsumerContext, run_size: RunSize, checkpoint: Path | None
    ) -> None:
        """Join the other ranks and read the weights, from a checkpoint if there is one.

        `directory` is what the configuration's paths are relative to.
        """
        os.chdir(directory)
        self._open = ExitStack()
        ranks: Ranks = ONE_RANK
        if context.meeting is not None:
            device = choose_device(config.model)
            joined = process_group(
                context.meeting, rank=context.rank, size=context.size, device=device, timeout=COLLECTIVE_SECONDS
            )
            self._open.enter_context(joined)
            ranks = make_ranks(config.parallel, device)
        found = None if checkpoint is None else read_checkpoint(checkpoint)
        tokenizer = load_tokenizer(config.model)
        self.trainer = make_trainer(config, tokenizer, run_size, checkpoint=found, ranks=ranks)

    def sentences(self) -> tuple[str, ...]:
        """Sentences for the user on how the model is computed."""
        return tuple(trainer_sentences(self.trainer))

    def update(self, number: int, groups: Sequence[RolloutGroup]) -> ConsumerUpdate:
        """All updates of a step, and the manifest of the new weights."""
        stats, rate = self.trainer.update(number, groups)
        return ConsumerUpdate(stats=stats, learning_rate=rate, manifest=self.manifest(number))

    def manifest(self, version: int) -> Manifest:
        """Manifest of the current weights."""
        ranks, model = self.trainer.learner.ranks, self.trainer.policy.model
        return manifest_of(model, version=version, policy_version=self.trainer.policy_version, ranks=ranks)

    def bucket(self, names: Sequence[str]) -> list[np.ndarray]:
        """One bucket of the current weights; the first rank returns it, the others help to gather."""
        return read_bucket(self.trainer.policy.model, names, self.trainer.learner.ranks)

    def save(self, root: Path, state: TrainingState, protected: Collection[Path]) -> tuple[str, ...]:
        """Begin a checkpoint; returns sentences for the user."""
        return self.trainer.save(root, state, protected)

    def saved(self, wait: bool) -> Checkpoint | None:
        """The checkpoint once it is on disk; asked of the first rank, which commits for all."""
        return self.trainer.saved(wait=wait)

    def footprint(self) -> Footprint:
        """Bytes of a checkpoint and of the final model on disk."""
        return self.trainer.footprint()

    def export(self, folder: Path) -> None:
        """Write the trained model as transformers or peft loads it."""
        self.trainer.export(folder)
