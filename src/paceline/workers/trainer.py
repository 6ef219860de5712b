"""A trainer's process: one rank with learner, optimiser and checkpoints."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.checkpoints.finding import Checkpoint, TrainingState
from paceline.config.sections import Config
from paceline.kernels.checksums import fingerprint
from paceline.models.parallel.mesh_ranks import MeshRanks
from paceline.models.parallel.pieces import piece_of
from paceline.models.parallel.ranks import ONE_RANK, Ranks
from paceline.models.pretrained import load_tokenizer
from paceline.training.learner.stats import UpdateStats
from paceline.training.memory import Footprint
from paceline.training.records import trainer_sentences
from paceline.training.setup.run_inputs import Overrides, RunSize
from paceline.training.trainer import make_trainer
from paceline.types import RolloutGroup
from paceline.workers.weight_sync import Manifest, WeightsChecksum, manifest_of, read_bucket

COLLECTIVE_SECONDS = 1800.0
"""Timeout of a collective, in seconds; ranks' shares of an update differ in size. Heartbeats find a rank that is gone
or stopped, and sooner."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerUpdate:
    """Result of a step's updates on a rank."""

    stats: UpdateStats
    learning_rate: float
    policy_version: int
    held: WeightsChecksum | None
    """Fingerprint of this rank's weights; None if no other rank holds a copy."""
    manifest: Manifest | None
    """Manifest of the new weights, where samplers fetch them from a store."""


class TrainerWorker:
    """The methods of a trainer's process. All trainers get the same calls, and make them together."""

    def __init__(
        self,
        config: Config,
        run_size: RunSize,
        checkpoint: Checkpoint | None,
        *,
        overrides: Overrides | None = None,
        ranks: Ranks = ONE_RANK,
        before_update: Callable[[], None] = lambda: None,
    ) -> None:
        """Read the weights, from a checkpoint if there is one, or take a program's own model of `overrides`.

        `before_update` lets go of memory for an update.
        """
        self._ranks, self._has_store, self._before_update = ranks, config.cluster.cluster, before_update
        given = overrides or Overrides()
        tokenizer, is_own = given.tokenizer or load_tokenizer(config.model), given.model is not None
        at = None if is_own else checkpoint
        self.trainer = make_trainer(config, tokenizer, run_size, given, checkpoint=at, ranks=ranks)
        if is_own and checkpoint is not None:
            self.trainer.restore(checkpoint)

    def sentences(self) -> tuple[str, ...]:
        """Sentences for the user on how the model is computed."""
        return tuple(trainer_sentences(self.trainer))

    def update(self, number: int, groups: Sequence[RolloutGroup]) -> TrainerUpdate:
        """Run all updates of a step."""
        self._before_update()
        stats, rate = self.trainer.update(number, groups)
        manifest = self.manifest(number) if self._has_store else None
        held = None if manifest is None else manifest.checksum
        if manifest is None and isinstance(self._ranks, MeshRanks) and self._ranks.mesh.has_copies:
            trained = (one for one in self.trainer.policy.model.parameters() if one.requires_grad)
            found = fingerprint(piece_of(one).tensor.contiguous() for one in trained)
            held = WeightsChecksum(part=self._ranks.mesh.part, fingerprint=found)
        version = self.trainer.policy_version
        return TrainerUpdate(stats=stats, learning_rate=rate, policy_version=version, held=held, manifest=manifest)

    def manifest(self, version: int) -> Manifest:
        """Manifest of the current weights."""
        model, policy_version = self.trainer.policy.model, self.trainer.policy_version
        return manifest_of(model, version=version, policy_version=policy_version, ranks=self._ranks)

    def measure(self, groups: Sequence[RolloutGroup]) -> UpdateStats:
        """Report what an update would find in these groups, without an update."""
        return self.trainer.learner.measure(groups)

    def bucket(self, names: Sequence[str]) -> list[np.ndarray]:
        """One bucket of the current weights; the first rank returns it, the others help to gather."""
        return read_bucket(self.trainer.policy.model, names, self._ranks)

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
