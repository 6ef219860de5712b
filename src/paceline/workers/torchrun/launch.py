"""The entry points of a run on a launch's ranks: the first rank has the loop, the others answer its calls."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType

import torch
import torch.distributed as dist

from paceline.checkpoints.finding import Checkpoint
from paceline.config.sections import Config
from paceline.errors import PacelineError
from paceline.models.parallel.process_group import Meeting, process_group
from paceline.models.parallel.ranks import RankLost
from paceline.runtime.activity import ACTIVITY
from paceline.runtime.devices import choose_device
from paceline.runtime.interrupts import StopRequest
from paceline.training.backend import Backend, make_task_sampler
from paceline.training.run import START
from paceline.training.setup.run_inputs import RunInputs
from paceline.workers.backend import RankWeights, WorkerBackend
from paceline.workers.group import WorkerGroup
from paceline.workers.torchrun.environment import Launched, device_index
from paceline.workers.torchrun.heartbeats import Ended, PeerHeartbeats, end_follower, end_leader
from paceline.workers.torchrun.rank_worker import (
    BLAME_SECONDS,
    LEAVE,
    RankWorker,
    RankWorkers,
    answer_calls,
    roles_of,
)
from paceline.workers.torchrun.rendezvous import SocketChannels, open_channels, open_store
from paceline.workers.trainer import COLLECTIVE_SECONDS
from paceline.workers.weight_sync import WeightsGroup

FAREWELL_SECONDS = 30.0
"""Seconds that a rank which reported its error waits for the first rank to print it."""
INTERRUPTED = 128 + signal.SIGINT


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
