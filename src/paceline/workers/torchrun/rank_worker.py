"""What a rank is and does: its role, its trainer and sampler, and how the first rank calls them."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

import torch
from typing_extensions import override

from paceline.checkpoints.finding import read_checkpoint
from paceline.config.layout import ParallelConfig, training_ranks
from paceline.config.sections import Config
from paceline.errors import ProcessLost
from paceline.models.loading import load_model
from paceline.models.parallel.gathering import full_parameters
from paceline.models.parallel.mesh_ranks import make_ranks
from paceline.models.parallel.ranks import ONE_RANK, RankLost, Ranks
from paceline.rewards.function import RewardFunction
from paceline.runtime.activity import ACTIVITY
from paceline.training.rollout_journal import NO_TRANSFER, WeightTransfer
from paceline.training.setup.run_inputs import RunSize
from paceline.workers.group import Workers
from paceline.workers.sampler import SamplerWorker
from paceline.workers.torchrun.heartbeats import PeerHeartbeats
from paceline.workers.trainer import TrainerWorker
from paceline.workers.weight_sync import (
    BroadcastGroup,
    Renewed,
    WeightsChecksum,
    copy_weights,
    give_weights,
    take_weights,
)

LEAVE = "leave"
"""Last call: the run is over."""
BLAME_SECONDS = 5.0
"""Seconds to wait for the name of the lost rank when a channel breaks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Roles:
    """Ranks that train and ranks that sample. The first rank always trains, because it has the loop."""

    training: range
    sampling: range

    @property
    def are_apart(self) -> bool:
        """True if the sampling ranks do not train."""
        return self.sampling.start > 0

    @property
    def sentence(self) -> str:
        """Sentence for the user on who does what."""
        if not self.are_apart:
            return f"{len(self.sampling)} ranks sample and train together"
        train, sample = _counted(self.training, "trains", "train"), _counted(self.sampling, "samples", "sample")
        return f"{train}, {sample}"


def roles_of(options: ParallelConfig, ranks: int) -> Roles:
    """Roles of this many ranks: all sample and train, or the last ones only sample.

    Raises:
        ConfigError: none would be left to train.
    """
    first = training_ranks(options, ranks)
    return Roles(training=range(first), sampling=range(first if options.sampling_ranks else 0, ranks))


def _counted(ranks: range, one: str, several: str) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} {one}"
    return f"ranks {ranks[0]} {'and' if len(ranks) == 2 else 'to'} {ranks[-1]} {several}"


@dataclass(kw_only=True, slots=True)
class RankWorker:
    """A rank: its resources, and its trainer and sampler as far as its role has them."""

    rank: int
    roles: Roles
    device: torch.device
    cores: int
    broadcast_group: BroadcastGroup | None = None
    """Group of the first rank and those that only sample; None on other ranks, or if no rank only samples."""
    functions: Mapping[str, RewardFunction] | None = None
    """Reward functions; None for those of the configuration."""
    trainer: TrainerWorker | None = None
    sampler: SamplerWorker | None = None
    ranks: Ranks = ONE_RANK

    @property
    def is_split(self) -> bool:
        """True if this rank trains less than the whole model."""
        return self.ranks.sizes.splits_the_model

    def build(self, config: Config, run_size: RunSize, checkpoint: Path | None) -> None:
        """Read the weights, from a checkpoint if there is one."""
        torch.set_num_threads(self.cores)  # launchers leave one, and what reads the weights takes what it finds
        if self.rank in self.roles.training:
            offload = "parameters" in config.optim.offload
            self.ranks = make_ranks(config.parallel, self.device, offload=offload)
            self.trainer = TrainerWorker(
                config,
                run_size,
                checkpoint,
                ranks=self.ranks,
                before_update=lambda: None if self.sampler is None else self.sampler.engine.rest(),
            )
        if self.rank in self.roles.sampling:
            found = None if checkpoint is None else read_checkpoint(checkpoint)
            if self.trainer is None or self.is_split:
                place = None if found is None else found.model
                policy = load_model(config.model, config.lora, checkpoint=place, seed=config.loop.seed)
                policy.model.requires_grad_(False)
            else:
                policy = self.trainer.trainer.policy
            self.sampler = SamplerWorker(config, policy, self.functions)
            self.sampler.engine.take_weights(0 if found is None else found.state.policy_version)

    def renew(self, policy_version: int) -> Renewed:
        """Bring samplers to the trained weights of this version; all ranks call it together."""
        started, group, device = time.perf_counter(), self.broadcast_group, self.device
        if self.sampler is None:
            assert self.trainer is not None
            weights = full_parameters(self.trainer.trainer.policy.model, self.ranks)
            if group is None:
                assert not [*weights]  # those who have parts of it help the first one, and get none
                return Renewed(transfer=NO_TRANSFER, held=None)
            found, nbytes = give_weights(group, weights, device)
        elif self.trainer is None:
            assert group is not None
            self.sampler.engine.rest()
            found, nbytes = take_weights(group, self.sampler.policy.model, device)
            self.sampler.engine.take_weights(policy_version)
        else:
            is_copied = self.is_split and self.sampler.engine.policy_version != policy_version
            if is_copied:
                weights = full_parameters(self.trainer.trainer.policy.model, self.ranks, everywhere=True)
                found, nbytes = copy_weights(self.sampler.policy.model, weights)
            self.sampler.engine.take_weights(policy_version)
            if not is_copied:
                return Renewed(transfer=NO_TRANSFER, held=None)
        transfer = WeightTransfer(seconds=time.perf_counter() - started, nbytes=nbytes)
        return Renewed(transfer=transfer, held=WeightsChecksum(part=(), fingerprint=found))


class Channels(Protocol):
    """Channels from the first rank to the others, or from another rank to it."""

    def send(self, ranks: Collection[int], message: Any) -> None:
        """Send the same message to several ranks."""

    def receive(self, rank: int) -> Any:
        """Wait for a rank's next message.

        Raises:
            RankLost: none will come.
        """


class RankWorkers(Workers):
    """`Workers` that are ranks: the first one sends its calls to the others and does its own part at the same time."""

    def __init__(
        self, own: Any, numbers: range, channels: Channels, heartbeats: PeerHeartbeats, *, part: str = ""
    ) -> None:
        """`own` is this rank's worker; methods are looked up in its `part`, such as `trainer`."""
        self._own, self._numbers, self._channels, self._heartbeats = own, numbers, channels, heartbeats
        self._prefix = f"{part}." if part else ""
        self._own_call: tuple[str, tuple[Any, ...]] = ("", ())

    @property
    @override
    def numbers(self) -> Sequence[int]:
        return self._numbers

    @override
    def start(self, workers: Collection[int], method: str, arguments: tuple[Any, ...]) -> None:
        call, others = (self._prefix + method, arguments), [worker for worker in workers if worker]
        if others:
            with self._blaming():
                self._channels.send(others, call)
        if 0 in workers:
            self._own_call = call

    @override
    def wait(self, busy: Collection[int]) -> int:
        """The first rank's own part comes first: meanwhile the others do theirs."""
        return min(busy)

    @override
    def answer(self, worker: int) -> Any:
        with self._blaming():
            if worker:
                ACTIVITY.beat("rank 0", f"waits for what rank {worker} gives")
                return self._channels.receive(worker)
            method, arguments = self._own_call
            return attrgetter(method)(self._own)(*arguments)

    @contextmanager
    def _blaming(self) -> Iterator[None]:
        """Name the rank that was lost, where this one only lost touch with it."""
        try:
            yield
        except RankLost as lost:
            raise (self._heartbeats.verdict(BLAME_SECONDS) or ProcessLost(str(lost))) from None


def answer_calls(worker: Any, channels: Channels) -> None:
    """Answer the first rank's calls on another rank until the last one.

    Raises:
        RankLost: the first rank, or another one, cannot be reached any more.
        PacelineError: a call raised it; there is no answer then.
    """
    while True:
        method, arguments = channels.receive(0)
        if method == LEAVE:
            return
        channels.send([0], attrgetter(method)(worker)(*arguments))
