"""A rank that trains: its share of each update, and its part of every checkpoint."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from paceline.checkpoints.finding import Checkpoint, TrainingState, read_checkpoint
from paceline.config.sections import Config
from paceline.models.fingerprints import fingerprint
from paceline.models.parallel.gathering import full_parameters
from paceline.models.parallel.mesh_ranks import make_ranks
from paceline.models.parallel.pieces import piece_of
from paceline.models.pretrained import load_tokenizer
from paceline.training.footprint import Footprint
from paceline.training.learner.stats import UpdateStats
from paceline.training.records import trainer_sentences
from paceline.training.sampled_step import NO_TRANSFER, WeightTransfer
from paceline.training.setup.run_inputs import RunSize
from paceline.training.trainer import make_trainer
from paceline.types import RolloutGroup
from paceline.workers.torchrun.broadcast import give_weights
from paceline.workers.torchrun.rank_context import RankContext
from paceline.workers.torchrun.replicas import Renewed, WeightsChecksum


@dataclass(frozen=True, kw_only=True, slots=True)
class RankUpdate:
    """Result of a step's updates on a rank."""

    stats: UpdateStats
    learning_rate: float
    policy_version: int
    held: WeightsChecksum | None
    """Fingerprint of this rank's weights; None if no other rank holds a copy."""


class TrainingRank:
    """A training rank. All training ranks make each call together."""

    def __init__(self, context: RankContext, config: Config, run_size: RunSize, checkpoint: Path | None) -> None:
        """Read the weights, from a checkpoint if there is one."""
        torch.set_num_threads(context.cores)  # launchers leave one, and what reads the weights takes what it finds
        self._context, self._ranks = context, make_ranks(config.parallel, context.device)
        self.trainer = make_trainer(
            config,
            load_tokenizer(config.model),
            run_size,
            checkpoint=None if checkpoint is None else read_checkpoint(checkpoint),
            ranks=self._ranks,
            progress=context.progress,
        )

    @property
    def policy_version(self) -> int:
        """Optimiser updates that the weights have seen."""
        return self.trainer.policy_version

    @property
    def is_split(self) -> bool:
        """True if this rank holds less than the whole model."""
        return self._ranks.sizes.splits_the_model

    def sentences(self) -> tuple[str, ...]:
        """Sentences for the user on how the model is computed."""
        return tuple(trainer_sentences(self.trainer))

    def renew(self, policy_version: int) -> Renewed:
        """Broadcast the weights of this version to the ranks that only sample."""
        weights = full_parameters(self.trainer.policy.model, self._ranks)
        if self._context.broadcast_group is None:
            assert not [*weights]  # those who have parts of it help the first one, and get none
            return Renewed(transfer=NO_TRANSFER, held=None)
        started = time.perf_counter()
        found, nbytes = give_weights(self._context.broadcast_group, weights, self._context.device)
        transfer = WeightTransfer(seconds=time.perf_counter() - started, nbytes=nbytes)
        return Renewed(transfer=transfer, held=WeightsChecksum(part=(), fingerprint=found))

    def update(self, number: int, groups: Sequence[RolloutGroup]) -> RankUpdate:
        """Run all updates of a step together with the other ranks."""
        stats, rate = self.trainer.update(number, groups)
        return RankUpdate(stats=stats, learning_rate=rate, policy_version=self.policy_version, held=self._held())

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

    def _held(self) -> WeightsChecksum | None:
        mesh = self._ranks.mesh
        if not mesh.has_copies:
            return None
        trained = (one for one in self.trainer.policy.model.parameters() if one.requires_grad)
        return WeightsChecksum(
            part=mesh.part, fingerprint=fingerprint(piece_of(one).tensor.contiguous() for one in trained)
        )
