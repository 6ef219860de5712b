"""Ranks of a launch: what each is and does, how the first one calls it, and the entry points of all."""

import os
import signal
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
import torch.distributed as dist
from typing_extensions import override

from paceline.checkpoints.finding import Checkpoint, read_checkpoint
from paceline.config.layout import ParallelConfig, training_ranks
from paceline.config.sections import Config
from paceline.errors import PacelineError, ProcessLost
from paceline.models.loading import load_model
from paceline.models.parallel.gathering import full_parameters
from paceline.models.parallel.mesh_ranks import make_ranks
from paceline.models.parallel.process_group import Meeting, process_group
from paceline.models.parallel.ranks import ONE_RANK, RankLost, Ranks
from paceline.rewards.function import RewardFunction
from paceline.runtime.activity import ACTIVITY
from paceline.runtime.devices import choose_device
from paceline.runtime.interrupts import StopRequest
from paceline.training.backend import Backend, make_task_sampler
from paceline.training.rollout_journal import NO_TRANSFER, WeightTransfer
from paceline.training.run import START
from paceline.training.setup.run_inputs import RunInputs, RunSize
from paceline.workers.backend import RankWeights, WorkerBackend
from paceline.workers.group import WorkerGroup, Workers
from paceline.workers.sampler import SamplerWorker
from paceline.workers.torchrun.environment import Launched, device_index
from paceline.workers.torchrun.heartbeats import Ended, PeerHeartbeats, end_follower, end_leader
from paceline.workers.torchrun.rendezvous import SocketChannels, open_channels, open_store
from paceline.workers.trainer import COLLECTIVE_SECONDS, TrainerWorker
from paceline.workers.weight_sync import (
    BroadcastGroup,
    Renewed,
    WeightsChecksum,
    WeightsGroup,
    copy_weights,
    give_weights,
    take_weights,
)

LEAVE = "leave"
"""Last call: the run is over."""
BLAME_SECONDS = 5.0
"""Seconds to wait for the name of the lost rank when a channel breaks."""
FAREWELL_SECONDS = 30.0
"""Seconds that a rank which reported its error waits for the first rank to print it."""
INTERRUPTED = 128 + signal.SIGINT


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
        """Wait for a rank's next message; raises RankLost where none will come."""


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


# --- the entry points


@dataclass(kw_only=True, slots=True)
class Leader:
    """The first rank, connected to all others."""

    place: Launched
    channels: SocketChannels
    heartbeats: PeerHeartbeats
    worker: RankWorker
    status: int = PacelineError.exit_status
    """Exit status of all ranks."""

    @contextmanager
    def on_all_ranks(self, config: Config, inputs: RunInputs, checkpoint: Checkpoint | None) -> Iterator[Backend]:
        """Build the backend of a run on all ranks, a `BackendFactory`."""
        path = None if checkpoint is None else checkpoint.path.absolute()
        own, roles = self.worker, self.worker.roles
        own.functions = inputs.functions

        def group(numbers: range, part: str = "") -> WorkerGroup:
            workers = RankWorkers(own, numbers, self.channels, self.heartbeats, part=part)
            # where the first rank samples too, its engine says more
            return WorkerGroup(workers, "rank", is_counted=roles.are_apart)

        ranks = group(range(self.place.size))
        trainers, samplers = group(roles.training, "trainer"), group(roles.sampling, "sampler")
        ranks.call("build", config, inputs.run_size, path)
        start = START if checkpoint is None else checkpoint.state
        weights = RankWeights(ranks, trainers, policy_version=start.policy_version)
        task_sampler = make_task_sampler(config, inputs, checkpoint)
        backend = WorkerBackend(config, inputs, task_sampler, weights=weights, samplers=samplers, done=start.step)
        copies = ("every rank samples from a whole copy of the weights, renewed after each step",)
        sentences = *samplers.ask("sentences"), *trainers.ask("sentences")
        has_copies = own.is_split and not roles.are_apart
        backend.sentences = (roles.sentence, *(copies if has_copies else ()), *sentences)
        yield backend


@contextmanager
def leading(place: Launched, config: Config) -> Iterator[Leader]:
    """Connect the first rank with all others. They end with its `status`, or with that of the error which ends it.

    Raises:
        ProcessLost: not all of them came; later on, one of them is gone or silent.
    """
    store, channels, heartbeats = _meet(place, config)
    with heartbeats, _told_apart_from_a_loss(heartbeats):
        try:
            ACTIVITY.stack_dumps["ranks"] = heartbeats.ask_for_stacks
            with _ready(place, config, store) as worker:
                leader = Leader(place=place, channels=channels, heartbeats=heartbeats, worker=worker)
                yield leader
                channels.send(range(1, place.size), (LEAVE, ()))
        except BaseException as error:
            culprit = heartbeats.verdict(BLAME_SECONDS) if isinstance(error, RankLost) else None
            heartbeats.leave()
            status = getattr(culprit or error, "exit_status", PacelineError.exit_status)
            heartbeats.tell_end(INTERRUPTED if isinstance(culprit or error, KeyboardInterrupt) else status)
            if culprit is not None:
                raise culprit from None
            raise
        heartbeats.leave()
        heartbeats.tell_end(leader.status)


def follow(place: Launched, config: Config) -> int:
    """Answer the first rank's calls on any other rank until it ends the run; returns the exit status.

    The first rank handles a first signal, which it gets too.

    Raises:
        ProcessLost: not all of them came.
    """
    with StopRequest():
        try:
            store, channels, heartbeats = _meet(place, config)
            with heartbeats:
                try:
                    with _ready(place, config, store) as worker:
                        answer_calls(worker, channels)
                except Exception as error:  # noqa: BLE001 - not swallowed: the first rank says it and ends all
                    heartbeats.tell_failure(error)
                heartbeats.verdict(FAREWELL_SECONDS)
                heartbeats.raise_verdict()
        except Ended as ended:
            return ended.status
    return PacelineError.exit_status


def _meet(place: Launched, config: Config) -> tuple[dist.Store, SocketChannels, PeerHeartbeats]:
    """Connect a rank to the others. The store stays as long as any rank may need it: the first rank's is the server."""
    store = open_store(place)
    channels = open_channels(place, store)
    force = end_leader if place.leads else end_follower
    return store, channels, PeerHeartbeats(channels.life, limit=config.cluster.actor_timeout, force=force)


@contextmanager
def _ready(place: Launched, config: Config, store: dist.Store) -> Iterator[RankWorker]:
    """Set this rank's device, join the training ranks, and connect to those that only sample."""
    device, roles = choose_device(config.model), roles_of(config.parallel, place.size)
    if device.type == "cuda":
        device = torch.device("cuda", device_index(place, visible=torch.cuda.device_count()))
        torch.cuda.set_device(device)
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = place.cores or max(1, here // place.local_size)
    if place.is_one_machine:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # nothing listens where others could reach it
    with ExitStack() as joined:
        if place.rank in roles.training:
            meeting, size = Meeting(opened=dist.PrefixStore("training", store)), len(roles.training)
            joined.enter_context(
                process_group(meeting, rank=place.rank, size=size, device=device, timeout=COLLECTIVE_SECONDS)
            )
        group, there = None, [0, *roles.sampling]
        if roles.are_apart and place.rank in there:
            own, number = dist.PrefixStore("sampling", store), there.index(place.rank)
            group = WeightsGroup(own, rank=number, size=len(there), device=device, timeout=COLLECTIVE_SECONDS)
        yield RankWorker(rank=place.rank, roles=roles, device=device, cores=cores, broadcast_group=group)


@contextmanager
def _told_apart_from_a_loss(heartbeats: PeerHeartbeats) -> Iterator[None]:
    """Interrupt on SIGTERM outside the loop, unless a rank died: launchers send it then too."""

    def stop(number: int, frame: FrameType | None) -> None:
        heartbeats.verdict(1.0)
        heartbeats.raise_verdict()
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except BaseException:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it may come before the error is printed
        raise
    signal.signal(signal.SIGTERM, previous)
