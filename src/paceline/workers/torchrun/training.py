"""What a rank does that trains: its share of each update, with all others that train; its part of what is saved."""

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
    """What a step's updates did."""

    stats: UpdateStats
    learning_rate: float
    policy_version: int
    held: WeightsChecksum | None
    """What this rank has of the weights now; None: no other holds the same."""


class TrainingRank:
    """A rank's part of the consumer half. Calls are made on all ranks that train together."""

    def __init__(self, context: RankContext, config: Config, run_size: RunSize, checkpoint: Path | None) -> None:
        """Read the weights, from a checkpoint where there is one."""
        torch.set_num_threads(context.cores)  # launchers leave one, and what reads the weights takes what it finds
        self._context, self._ranks = context, make_ranks(config.parallel, context.device)
        self.half = make_trainer(
            config,
            load_tokenizer(config.model),
            run_size,
            checkpoint=None if checkpoint is None else read_checkpoint(checkpoint),
            ranks=self._ranks,
            progress=context.progress,
        )

    @property
    def policy_version(self) -> int:
        """Updates that the weights have seen."""
        return self.half.policy_version

    @property
    def is_split(self) -> bool:
        """Whether this rank has less than a whole copy of the model."""
        return self._ranks.sizes.splits_the_model

    def sentences(self) -> tuple[str, ...]:
        """What a person should know of how the model is computed."""
        return tuple(trainer_sentences(self.half))

    def renew(self, policy_version: int) -> Renewed:
        """BroadcastGroup the weights on to the ranks that only sample; they are as so many updates have made them."""
        weights = full_parameters(self.half.policy.model, self._ranks)
        if self._context.broadcast_group is None:
            assert not [*weights]  # those who have parts of it help the first one, and get none
            return Renewed(transfer=NO_TRANSFER, held=None)
        started = time.perf_counter()
        found, nbytes = give_weights(self._context.broadcast_group, weights, self._context.device)
        transfer = WeightTransfer(seconds=time.perf_counter() - started, nbytes=nbytes)
        return Renewed(transfer=transfer, held=WeightsChecksum(part=(), fingerprint=found))

    def update(self, number: int, groups: Sequence[RolloutGroup]) -> RankUpdate:
        """See `Backend`."""
        stats, rate = self.half.update(number, groups)
        return RankUpdate(stats=stats, learning_rate=rate, policy_version=self.policy_version, held=self._held())

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

    def _held(self) -> WeightsChecksum | None:
        mesh = self._ranks.mesh
        if not mesh.has_copies:
            return None
        trained = (one for one in self.half.policy.model.parameters() if one.requires_grad)
        return WeightsChecksum(
            part=mesh.part, fingerprint=fingerprint(piece_of(one).tensor.contiguous() for one in trained)
        )
