"""A rank of a launch: its roles, its methods, and the first rank's calls of them."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import torch
from typing_extensions import override

from paceline.checkpoints.finding import read_checkpoint
from paceline.config.layout import ParallelConfig, training_ranks
from paceline.config.sections import Config
from paceline.errors import ProcessLost
from paceline.models.loading import restore_weights
from paceline.models.parallel.gathering import full_parameters
from paceline.models.parallel.mesh_ranks import make_ranks
from paceline.models.parallel.process_group import RankLost
from paceline.models.parallel.ranks import ONE_RANK, Ranks
from paceline.runtime.activity import ACTIVITY
from paceline.training.rollouts.rounds import NO_TRANSFER, WeightTransfer
from paceline.training.setup.inputs import RunObjects, RunSize
from paceline.workers.group import Workers
from paceline.workers.torchrun.rendezvous import SocketChannels
from paceline.workers.weight_sync import (
    Manifest,
    Renewed,
    WeightsChecksum,
    WeightsGroup,
    copy_weights,
    give_weights,
    taken,
)
from paceline.workers.worker import SamplerWorker, TrainerWorker, load_copy

LEAVE = "leave"
"""Last call: what the first rank leads is over."""
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
    """Roles of the ranks: all sample and train, or the last ones only sample; a ConfigError if none would train."""
    first = training_ranks(options, ranks)
    return Roles(training=range(first), sampling=range(first if options.sampling_ranks else 0, ranks))


def _counted(ranks: range, singular: str, several: str) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} {singular}"
    return f"ranks {ranks[0]} {'and' if len(ranks) == 2 else 'to'} {ranks[-1]} {several}"


@dataclass(kw_only=True, slots=True)
class RankWorker:
    """A rank: its resources, and its trainer and sampler as far as its role has them."""

    rank: int
    roles: Roles
    device: torch.device
    cores: int
    broadcast_group: WeightsGroup | None = None
    """Group of the first rank and those that only sample; None on other ranks, or if no rank only samples."""
    objects: RunObjects = field(default_factory=RunObjects)
    """This rank's own objects in place of what the configuration names."""
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
        start = None if checkpoint is None else read_checkpoint(checkpoint)
        trains, samples = self.rank in self.roles.training, self.rank in self.roles.sampling
        if trains:
            self.ranks = make_ranks(config.parallel, self.device, offload="parameters" in config.optim.offload)
            if self.objects.model is not None:
                same_weights(self.objects.model, self.ranks, self.device)
        # a copy to sample from is made before the trainer leaves its part of a program's own model
        sampled_copy = (
            load_copy(config, self.objects, start, is_apart=not trains, images=run_size.images)
            if samples and (not trains or self.is_split)
            else None
        )
        if trains:
            self.trainer = TrainerWorker(
                config,
                run_size,
                start,
                objects=self.objects,
                ranks=self.ranks,
                before_update=lambda: None if self.sampler is None else self.sampler.engine.rest(),
            )
        if samples:
            policy = sampled_copy or cast(TrainerWorker, self.trainer).trainer.policy
            self.sampler = SamplerWorker(config, policy, self.objects)
            self.sampler.engine.take_weights(0 if start is None else start.state.policy_version)

    def restore(self, checkpoint: Path, policy_version: int) -> None:
        """Put a checkpoint of this version into what was built without it."""
        start = read_checkpoint(checkpoint)
        if self.trainer is not None:
            self.trainer.trainer.restore(start)
        self._take(start.model, policy_version)

    def load_weights(self, model: Path, policy_version: int) -> None:
        """Put the weights of a checkpoint's `model` directory alone into trainer and sampler."""
        if self.trainer is not None:
            restore_weights(self.trainer.trainer.policy, model)
        self._take(model, policy_version)

    def _take(self, model: Path, policy_version: int) -> None:
        if self.sampler is not None:
            if self.trainer is None or self.is_split:
                restore_weights(self.sampler.policy, model)
            self.sampler.engine.take_weights(policy_version)

    def load(self, manifest: Manifest) -> None:
        """Hand the weights that the first rank keeps on to the ranks that only sample, which sample from them then."""
        group = cast(WeightsGroup, self.broadcast_group)
        if self.sampler is None:
            weights = cast(TrainerWorker, self.trainer).kept[manifest.version]
            give_weights(group, manifest, weights, self.device)
            return
        self.sampler.engine.rest()
        self.sampler.write(manifest, taken(group, self.sampler.policy.model, manifest))
        self.sampler.engine.take_weights(manifest.policy_version)

    def renew(self, policy_version: int) -> Renewed:
        """Bring the copy that this rank samples from to the trained weights; all ranks call it together."""
        started, sampler = time.perf_counter(), cast(SamplerWorker, self.sampler)
        is_old = self.is_split and sampler.engine.policy_version != policy_version
        if is_old:
            model = cast(TrainerWorker, self.trainer).trainer.policy.model
            weights = full_parameters(model, self.ranks, everywhere=True)
            checksum, nbytes = copy_weights(sampler.policy.model, weights)
        sampler.engine.take_weights(policy_version)
        if not is_old:
            return Renewed(transfer=NO_TRANSFER, held=None)
        transfer = WeightTransfer(seconds=time.perf_counter() - started, nbytes=nbytes)
        return Renewed(transfer=transfer, held=WeightsChecksum(part=(), fingerprint=checksum))


class RankWorkers(Workers):
    """`Workers` that are ranks: the first one sends its calls to the others and does its own part at the same time."""

    def __init__(
        self,
        owner: Any,
        numbers: Sequence[int],
        channels: SocketChannels,
        raise_verdict: Callable[[float], None],
        *,
        part: str = "",
    ) -> None:
        """`owner` is what this rank has; methods are looked up in its `part`, such as `worker.trainer`.

        `raise_verdict`: raises the reason why the run is over, waiting so many seconds for it, if there is one.
        """
        self._own, self._numbers, self._channels, self._raise_verdict = owner, numbers, channels, raise_verdict
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
    def tell(self, worker: int, method: str, arguments: tuple[Any, ...]) -> None:
        with self._blaming():
            self._channels.send_event(worker, (self._prefix + method, arguments))

    @override
    def wait(self, busy: Collection[int]) -> int:
        """The first rank's own part comes first: meanwhile the others do theirs."""
        return min(busy)

    @override
    def result(self, worker: int) -> Any:
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
            self._raise_verdict(BLAME_SECONDS)
            raise ProcessLost(str(lost)) from None


def follow_calls(worker: Any, channels: SocketChannels) -> Any:
    """Answer the first rank's calls on another rank until the last one; returns what that one leaves.

    Raises:
        RankLost: the first rank, or another one, cannot be reached any more.
        PacelineError: a call raised it; there is no result then.
    """
    while True:
        method, arguments = channels.receive(0)
        if method == LEAVE:
            return arguments[0]
        channels.send([0], attrgetter(method)(worker)(*arguments))


def handle_events(worker: Any, channels: SocketChannels, failed: Callable[[Exception], None]) -> None:
    """Make the calls that the first rank sends as events, until the last one or until the first rank is gone."""
    try:
        while (message := channels.receive_event())[0] != LEAVE:
            attrgetter(message[0])(worker)(*message[1])
    except (EOFError, OSError):
        return
    except Exception as error:  # noqa: BLE001 - not swallowed: the first rank would send to a reader that is gone
        failed(error)


def same_weights(model: Any, ranks: Ranks, device: torch.device) -> None:
    """Give every rank that trains the first one's weights of a program's own model, as it may draw them at random."""
    for tensor in chain(model.parameters(), model.buffers()):
        if tensor.is_floating_point():  # quantised ones were read from files
            tensor.data.copy_(ranks.broadcast(tensor.detach().to(device).contiguous(), source=0))
