"""A rank that samples and trains, with one set of weights where it holds the whole model."""

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from paceline.checkpoints.finding import Checkpoint, TrainingState, read_checkpoint
from paceline.config.sections import Config
from paceline.engines import Request, Sampling
from paceline.models.fingerprints import bit_sums, folded
from paceline.models.loaded import Loaded
from paceline.models.parallel.gathering import full_parameters
from paceline.models.parallel.ranks import Ranks
from paceline.models.pretrained import load_tokenizer
from paceline.rewards.function import RewardFunction
from paceline.training.assembly import make_engine
from paceline.training.footprint import Footprint
from paceline.training.records import engine_sentences
from paceline.training.rollouts.rounds import Drawn, Round
from paceline.training.sampled_step import NO_TRANSFER, WeightTransfer
from paceline.training.setup.run_inputs import RunSize
from paceline.types import Completion, RolloutGroup
from paceline.workers.torchrun.rank_context import RankContext
from paceline.workers.torchrun.replicas import Renewed, WeightsChecksum
from paceline.workers.torchrun.sampling import load_to_sample, make_sampler
from paceline.workers.torchrun.training import RankUpdate, TrainingRank


class ColocatedRank:
    """A rank of a run in which all ranks sample and train.

    All ranks make each call together, except `sample` and `generate`, which are shared out.
    """

    def __init__(
        self,
        context: RankContext,
        functions: Mapping[str, RewardFunction] | None,
        config: Config,
        run_size: RunSize,
        checkpoint: Path | None,
    ) -> None:
        """Read the weights, from a checkpoint if there is one. `functions` is None for those of the configuration."""
        self._training = TrainingRank(context, config, run_size, checkpoint)
        self._policy, self._is_split = self._training.trainer.policy, self._training.is_split
        found = None if checkpoint is None else read_checkpoint(checkpoint)
        self._sampled = load_to_sample(config, found) if self._is_split else self._policy
        self.engine = make_engine(config, self._sampled, load_tokenizer(config.model), progress=context.progress)
        self.engine.take_weights(self._training.policy_version)
        self.sampler = make_sampler(config, self.engine, functions, progress=context.progress)

    def sentences(self) -> tuple[str, ...]:
        """Sentences for the user on how the model is computed."""
        resident = ("every rank samples from a whole copy of the weights, renewed after each step",)
        layout = resident if self._is_split else ()
        return (*layout, *engine_sentences(self.engine), *self._training.sentences())

    def sample(self, drawn: Drawn) -> Round:
        """Sample and score a share of a round."""
        return self.sampler.sample(drawn)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Generate a share of an evaluation; the caller grades it."""
        return self.engine.generate(requests, sampling)

    def renew(self, policy_version: int) -> Renewed:
        """Have the engine sample from the weights of this version; returns time and bytes where it holds a copy."""
        found = Renewed(transfer=NO_TRANSFER, held=None)
        if self._is_split and self.engine.policy_version != policy_version:
            started = time.perf_counter()
            fingerprint, nbytes = copy_weights(self._sampled, self._policy, self._training.trainer.learner.ranks)
            transfer = WeightTransfer(seconds=time.perf_counter() - started, nbytes=nbytes)
            found = Renewed(transfer=transfer, held=WeightsChecksum(part=(), fingerprint=fingerprint))
        self.engine.take_weights(policy_version)
        return found

    def update(self, number: int, groups: Sequence[RolloutGroup]) -> RankUpdate:
        """Run all updates of a step together with the other ranks."""
        self.engine.rest()
        return self._training.update(number, groups)

    def save(self, root: Path, state: TrainingState, protected: Collection[Path]) -> tuple[str, ...]:
        """Begin a checkpoint; returns sentences for the user."""
        return self._training.save(root, state, protected)

    def saved(self, wait: bool) -> Checkpoint | None:
        """The checkpoint once it is on disk; asked of the first rank, which commits for all."""
        return self._training.saved(wait)

    def footprint(self) -> Footprint:
        """Bytes of a checkpoint and of the final model on disk."""
        return self._training.footprint()

    def export(self, folder: Path) -> None:
        """Write the trained model as transformers or peft loads it."""
        self._training.export(folder)


@torch.no_grad()
def copy_weights(resident: Loaded, policy: Loaded, ranks: Ranks) -> tuple[int, int]:
    """Copy the trained weights, gathered one parameter at a time, into a whole copy; all ranks call it together.

    Returns:
        The fingerprint of the copy and the bytes that were copied.
    """
    sums, nbytes = list[Tensor](), 0
    for name, whole in full_parameters(policy.model, ranks, everywhere=True):
        sums.append(bit_sums(resident.model.get_parameter(name), whole.contiguous()))
        nbytes += whole.nbytes
    return folded(sums), nbytes
