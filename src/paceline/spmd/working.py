"""What every rank does: samples and scores a share of a step's tasks, trains with all others, saves."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from paceline.checkpoint import Checkpoint, Progress, read_checkpoint
from paceline.config import Config
from paceline.engines import Request, Sampling
from paceline.learner import UpdateStats
from paceline.models import Loaded, load_model, load_tokenizer
from paceline.parallel import make_ranks
from paceline.rewards import RewardFunction
from paceline.rollouts import Drawn, Round
from paceline.spmd.resident import renew
from paceline.train import (
    SHARED,
    Extent,
    Footprint,
    Handover,
    configured_functions,
    consumer_sentences,
    engine_sentences,
    make_consumer,
    make_engine,
    training_sampler,
    with_reward_models,
)
from paceline.types import Completion, RolloutGroup


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """Which of the ranks a process is, and what it computes with."""

    rank: int
    size: int
    device: torch.device
    cores: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Updated:
    """What a step's updates did."""

    stats: UpdateStats
    learning_rate: float
    policy_version: int


class WorkingRank:
    """A rank's part of a run: both halves, around one set of weights where it has them whole.

    Calls are made on all ranks together, but for `sample` and `generate`, of which each has a share.
    """

    def __init__(
        self,
        seat: Seat,
        functions: Mapping[str, RewardFunction] | None,
        config: Config,
        extent: Extent,
        checkpoint: Path | None,
    ) -> None:
        """Read the weights, from a checkpoint where there is one; `functions` None: those of the configuration."""
        torch.set_num_threads(seat.cores)  # launchers leave one, and what reads the weights takes what it finds
        ranks = make_ranks(config.parallel, seat.device)
        self._is_split = ranks.sizes.splits_the_model
        found = None if checkpoint is None else read_checkpoint(checkpoint)
        tokenizer = load_tokenizer(config.model)
        self.half = make_consumer(config, tokenizer, extent, checkpoint=found, ranks=ranks)
        self._sampled = _frozen_copy(config, found) if self._is_split else self.half.policy
        self.engine = make_engine(config, self._sampled, tokenizer)
        self.engine.take_weights(self.half.policy_version)
        if functions is None:
            functions = with_reward_models(configured_functions(config), config)
        self.sampler = training_sampler(config, self.engine, functions)

    @property
    def policy_version(self) -> int:
        """Updates that the weights have seen."""
        return self.half.policy_version

    def sentences(self) -> tuple[str, ...]:
        """What a person should know of how the model is computed."""
        resident = ("every rank samples from a whole copy of the weights, renewed after each step",)
        layout = resident if self._is_split else ()
        return (*layout, *engine_sentences(self.engine), *consumer_sentences(self.half))

    def sample(self, drawn: Drawn) -> Round:
        """A share of a round."""
        return self.sampler.sample(drawn)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """A share of what is measured; whoever asked grades it."""
        return self.engine.generate(requests, sampling)

    def renew(self) -> Handover:
        """Have the engine sample from the weights as they are; what that took where it has a copy."""
        if self.engine.policy_version == self.policy_version:
            return SHARED
        handover = renew(self._sampled, self.half.policy, self.half.learner.ranks) if self._is_split else SHARED
        self.engine.take_weights(self.policy_version)
        return handover

    def update(self, number: int, groups: Sequence[RolloutGroup]) -> Updated:
        """See `Halves`."""
        self.engine.rest()
        stats, rate = self.half.update(number, groups)
        return Updated(stats=stats, learning_rate=rate, policy_version=self.policy_version)

    def save(self, root: Path, progress: Progress, protected: Collection[Path]) -> tuple[str, ...]:
        """See `Halves`."""
        return self.half.save(root, progress, protected)

    def saved(self, wait: bool) -> Checkpoint | None:
        """See `Halves`; of the first rank, which commits for all."""
        return self.half.saved(wait=wait)

    def footprint(self) -> Footprint:
        """See `Halves`."""
        return self.half.footprint()

    def export(self, folder: Path) -> None:
        """See `Halves`."""
        self.half.export(folder)


def _frozen_copy(config: Config, checkpoint: Checkpoint | None) -> Loaded:
    place = None if checkpoint is None else checkpoint.model
    loaded = load_model(config.model, config.lora, checkpoint=place, seed=config.loop.seed)
    loaded.model.requires_grad_(False)
    return loaded
