"""A trainer's process: one rank with learner, optimiser and checkpoints."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from paceline.checkpoints.finding import Checkpoint
from paceline.config.sections import Config
from paceline.kernels.checksums import fingerprint
from paceline.models.parallel.mesh_ranks import MeshRanks
from paceline.models.parallel.pieces import piece_of
from paceline.models.parallel.ranks import ONE_RANK, Ranks
from paceline.models.pretrained import load_tokenizer
from paceline.training.learner.stats import UpdateStats
from paceline.training.records import trainer_sentences
from paceline.training.setup.checks import NO_OBJECTS
from paceline.training.setup.inputs import RunObjects, RunSize
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


class TrainerWorker:
    """The methods of a trainer's process. All trainers get the same calls, and make them together."""

    def __init__(
        self,
        config: Config,
        run_size: RunSize,
        checkpoint: Checkpoint | None,
        *,
        objects: RunObjects = NO_OBJECTS,
        ranks: Ranks = ONE_RANK,
        before_update: Callable[[], None] = lambda: None,
    ) -> None:
        """Read the weights, from a checkpoint if there is one, or take a program's own model of `objects`.

        `before_update` lets go of memory for an update.
        """
        self._ranks, self._before_update = ranks, before_update
        self.kept = dict[int, dict[str, Tensor]]()
        """Whole weights by version and name, on the first rank: those that ranks which only sample may still load."""
        self._goes_on = config.cluster.max_staleness > 0
        tokenizer, has_model = objects.tokenizer or load_tokenizer(config.model), objects.model is not None
        start = None if has_model else checkpoint
        self.trainer = make_trainer(config, tokenizer, run_size, objects, checkpoint=start, ranks=ranks)
        if has_model and checkpoint is not None:
            self.trainer.restore(checkpoint)

    def sentences(self) -> tuple[str, ...]:
        """Sentences for the user on how the model is computed."""
        return tuple(trainer_sentences(self.trainer))

    def update(self, number: int, groups: Sequence[RolloutGroup]) -> TrainerUpdate:
        """Run all updates of a step."""
        self._before_update()
        stats, rate = self.trainer.update(number, groups)
        held = None
        if isinstance(self._ranks, MeshRanks) and self._ranks.mesh.has_copies:
            trained = (parameter for parameter in self.trainer.policy.model.parameters() if parameter.requires_grad)
            checksum = fingerprint(piece_of(piece).tensor.contiguous() for piece in trained)
            held = WeightsChecksum(part=self._ranks.mesh.part, fingerprint=checksum)
        version = self.trainer.policy_version
        return TrainerUpdate(stats=stats, learning_rate=rate, policy_version=version, held=held)

    def manifest(self, version: int, keep: Callable[[str, Tensor], None] | None = None) -> Manifest | None:
        """Manifest of the current weights, on the first rank; `keep` is given each of them in its turn."""
        model, policy_version = self.trainer.policy.model, self.trainer.policy_version
        return manifest_of(model, version=version, policy_version=policy_version, ranks=self._ranks, keep=keep)

    def hold(self, version: int) -> Manifest | None:
        """Keep the whole trained weights as this version, on the first rank; all that train call it together."""
        weights, is_split = dict[str, Tensor](), self._ranks.sizes.splits_the_model

        def keep(name: str, weight: Tensor) -> None:
            # gathered ones lie on the device, of which there is little; others change while this version is kept
            weights[name] = weight.to("cpu", copy=not is_split) if self._goes_on or is_split else weight

        manifest = self.manifest(version, keep)
        if manifest is not None:
            self.kept[version] = weights
        return manifest

    def bucket(self, names: Sequence[str]) -> list[np.ndarray]:
        """One bucket of the current weights; the first rank returns it, the others help to gather."""
        return read_bucket(self.trainer.policy.model, names, self._ranks)
