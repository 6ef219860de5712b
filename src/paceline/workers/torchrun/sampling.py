"""A rank that only samples: completes and scores a share of a step's tasks."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from paceline.checkpoints.finding import Checkpoint, read_checkpoint
from paceline.config.sections import Config
from paceline.engines import Request, Sampling, TrainedEngine
from paceline.models.loaded import Loaded
from paceline.models.loading import load_model
from paceline.models.pretrained import load_tokenizer
from paceline.rewards.function import RewardFunction
from paceline.runtime.progress import NULL_PROGRESS, Progress
from paceline.training.assembly import make_engine
from paceline.training.records import engine_sentences
from paceline.training.rollouts.rounds import Drawn, EngineSampler, Round
from paceline.training.sampled_step import WeightTransfer
from paceline.training.setup.functions import configured_functions, with_reward_models
from paceline.training.setup.run_inputs import RunSize
from paceline.training.setup.samplers import training_rounds
from paceline.types import Completion
from paceline.workers.torchrun.broadcast import take_weights
from paceline.workers.torchrun.rank_context import RankContext
from paceline.workers.torchrun.replicas import Renewed, WeightsChecksum


class SamplingRank:
    """A sampling rank with a whole copy of the weights, without gradients."""

    def __init__(self, context: RankContext, config: Config, run_size: RunSize, checkpoint: Path | None) -> None:
        """Read the weights, from a checkpoint if there is one. `run_size` is for training ranks."""
        assert context.broadcast_group is not None  # those who train broadcast_group it their weights
        torch.set_num_threads(context.cores)
        self._broadcast_group, self._device = context.broadcast_group, context.device
        found = None if checkpoint is None else read_checkpoint(checkpoint)
        self._sampled = load_to_sample(config, found)
        self.engine = make_engine(config, self._sampled, load_tokenizer(config.model))
        self.engine.take_weights(0 if found is None else found.state.policy_version)
        self.sampler = make_sampler(config, self.engine)

    def sentences(self) -> tuple[str, ...]:
        """Sentences for the user on how completions are computed."""
        return tuple(engine_sentences(self.engine))

    def sample(self, drawn: Drawn) -> Round:
        """Sample and score a share of a round."""
        return self.sampler.sample(drawn)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Generate a share of an evaluation; the caller grades it."""
        return self.engine.generate(requests, sampling)

    def renew(self, policy_version: int) -> Renewed:
        """Receive the weights of this version from the training ranks."""
        started = time.perf_counter()
        self.engine.rest()
        found, nbytes = take_weights(self._broadcast_group, self._sampled.model, self._device)
        self.engine.take_weights(policy_version)
        transfer = WeightTransfer(seconds=time.perf_counter() - started, nbytes=nbytes)
        return Renewed(transfer=transfer, held=WeightsChecksum(part=(), fingerprint=found))


def load_to_sample(config: Config, checkpoint: Checkpoint | None) -> Loaded:
    """Load a whole copy of the weights, without gradients."""
    place = None if checkpoint is None else checkpoint.model
    loaded = load_model(config.model, config.lora, checkpoint=place, seed=config.loop.seed)
    loaded.model.requires_grad_(False)
    return loaded


def make_sampler(
    config: Config,
    engine: TrainedEngine,
    functions: Mapping[str, RewardFunction] | None = None,
    *,
    progress: Progress = NULL_PROGRESS,
) -> EngineSampler:
    """Build sampling and scoring in this process; `functions` is None for those of the configuration."""
    if functions is None:
        functions = with_reward_models(configured_functions(config), config)
    return training_rounds(config, engine, functions, progress=progress)
