"""The consumer half in processes of their own: a rank each, with the learner, its optimiser, its checkpoints."""

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
"""That a rank waits for the others' shares of an update, which may be larger than its own. One that is gone or stopped
is found out by the driver, and sooner."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerContext:
    """Which of the consumers a process is."""

    rank: int
    size: int
    meeting: Meeting | None
    """None: it is alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerUpdate:
    """What a step's updates did, and the weights that they made."""

    stats: UpdateStats
    learning_rate: float
    manifest: Manifest


class ConsumingProcess:
    """What a consumer's actor does. All ranks are given the same calls, and save and export together."""

    def __init__(
        self, config: Config, directory: Path, context: ConsumerContext, run_size: RunSize, checkpoint: Path | None
    ) -> None:
        """Meet the other ranks and read the weights, from a checkpoint where there is one.

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
        self.half = make_trainer(config, tokenizer, run_size, checkpoint=found, ranks=ranks)

    def sentences(self) -> tuple[str, ...]:
        """What a person should know of how the model is computed."""
        return tuple(trainer_sentences(self.half))

    def update(self, number: int, groups: Sequence[RolloutGroup]) -> ConsumerUpdate:
        """See `Backend`."""
        stats, rate = self.half.update(number, groups)
        return ConsumerUpdate(stats=stats, learning_rate=rate, manifest=self.manifest(number))

    def manifest(self, version: int) -> Manifest:
        """Of the weights as they are."""
        ranks, model = self.half.learner.ranks, self.half.policy.model
        return manifest_of(model, version=version, policy_version=self.half.policy_version, ranks=ranks)

    def bucket(self, names: Sequence[str]) -> list[np.ndarray]:
        """One bucket of the weights as they are; of the first rank, which the others help."""
        return read_bucket(self.half.policy.model, names, self.half.learner.ranks)

    def save(self, root: Path, state: TrainingState, protected: Collection[Path]) -> tuple[str, ...]:
        """See `Backend`."""
        return self.half.save(root, state, protected)

    def saved(self, wait: bool) -> Checkpoint | None:
        """See `Backend`; of the first rank, which commits for all."""
        return self.half.saved(wait=wait)

    def footprint(self) -> Footprint:
        """See `Backend`."""
        return self.half.footprint()

    def export(self, folder: Path) -> None:
        """See `Backend`."""
        self.half.export(folder)
