"""The entry points of a run on a launch's ranks: the first rank has the loop, the others answer its calls."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from paceline.checkpoints.finding import Checkpoint
from paceline.config.sections import Config
from paceline.errors import PacelineError
from paceline.models.parallel.process_group import Meeting, process_group
from paceline.models.parallel.ranks import RankLost
from paceline.rewards.function import RewardFunction
from paceline.runtime.devices import choose_device
from paceline.runtime.heartbeat import HEARTBEAT
from paceline.runtime.progress import NULL_PROGRESS
from paceline.runtime.signals import StopRequest
from paceline.runtime.timeline import Recorder
from paceline.training.backend import ReadyBackend, make_task_sampler
from paceline.training.setup.run_inputs import RunInputs
from paceline.workers.torchrun.backend import TorchrunBackend
from paceline.workers.torchrun.broadcast import BroadcastGroup, WeightsGroup
from paceline.workers.torchrun.colocated import ColocatedRank
from paceline.workers.torchrun.environment import Launched, device_index
from paceline.workers.torchrun.heartbeats import Ended, PeerHeartbeats, end_follower, end_leader
from paceline.workers.torchrun.rank_context import RankContext
from paceline.workers.torchrun.rank_group import BLAME_SECONDS, LEAVE, RankGroup, answer_calls
from paceline.workers.torchrun.rendezvous import SocketChannels, open_channels, open_store
from paceline.workers.torchrun.roles import Roles, roles_of
from paceline.workers.torchrun.sampling import SamplingRank
from paceline.workers.torchrun.training import TrainingRank

COLLECTIVE_SECONDS = 1800.0
"""Timeout of a collective, in seconds; ranks' shares of an update differ in size. The heartbeat channel finds a rank
that is gone or stopped, and sooner."""
FAREWELL_SECONDS = 30.0
"""Seconds that a rank which reported its error waits for the first rank to print it."""
INTERRUPTED = 128 + signal.SIGINT


@dataclass(frozen=True, kw_only=True, slots=True)
class Met:
    """Connections of a rank to the others."""

    store: dist.Store
    """Kept open as long as any rank may need it: the first rank's is the server."""
    channels: SocketChannels
    heartbeats: PeerHeartbeats


@dataclass(kw_only=True, slots=True)
class Leader:
    """The first rank, connected to all others."""

    place: Launched
    met: Met
    context: RankContext
    status: int = PacelineError.exit_status
    """Exit status of all ranks."""

    @contextmanager
    def on_all_ranks(self, config: Config, inputs: RunInputs, checkpoint: Checkpoint | None) -> Iterator[ReadyBackend]:
        """Build the backend of a run on all ranks, a `BackendFactory`."""
        path = None if checkpoint is None else checkpoint.path.absolute()
        roles = roles_of(config.parallel, self.place.size)
        group = RankGroup(
            _part(replace(self.context, progress=inputs.progress), roles, inputs.functions),
            (config, inputs.run_size, path),
            channels=self.met.channels,
            watch=self.met.heartbeats,
            roles=roles,
            recorder=Recorder(),
        )
        version = 0 if checkpoint is None else checkpoint.state.policy_version
        # where the first rank samples too, its engine says more
        progress = inputs.progress if roles.are_apart else NULL_PROGRESS
        task_sampler = make_task_sampler(config, inputs, checkpoint)
        backend = TorchrunBackend(config, task_sampler, group, policy_version=version, progress=progress)
        said = group.call("sentences")
        others = said[roles.sampling.start] if roles.are_apart else ()
        yield ReadyBackend(backend=backend, sentences=(roles.sentence, *others, *said[0]))


@contextmanager
def leading(place: Launched, config: Config) -> Iterator[Leader]:
    """Connect the first rank with all others. They end with its `status`, or with that of the error which ends it.

    Raises:
        ProcessLost: not all of them came; later on, one of them is gone or silent.
    """
    met = _meet(place, config)
    with met.heartbeats, _told_apart_from_a_loss(met.heartbeats):
        try:
            HEARTBEAT.stack_dumps["ranks"] = met.heartbeats.ask_for_stacks
            with _ready(place, config, met) as context:
                leader = Leader(place=place, met=met, context=context)
                yield leader
                met.channels.send(range(1, place.size), (LEAVE, ()))
        except BaseException as error:
            culprit = met.heartbeats.verdict(BLAME_SECONDS) if isinstance(error, RankLost) else None
            met.heartbeats.leave()
            met.heartbeats.tell_end(_status_of(culprit or error))
            if culprit is not None:
                raise culprit from None
            raise
        met.heartbeats.leave()
        met.heartbeats.tell_end(leader.status)


def follow(place: Launched, config: Config) -> int:
    """Answer the first rank's calls on any other rank until it ends the run; returns the exit status.

    The first rank handles a first signal, which it gets too.

    Raises:
        ProcessLost: not all of them came.
    """
    with StopRequest():
        try:
            met = _meet(place, config)
            with met.heartbeats:
                _answer(place, config, met)
                met.heartbeats.verdict(FAREWELL_SECONDS)
                met.heartbeats.raise_verdict()
        except Ended as ended:
            return ended.status
    return PacelineError.exit_status


def _answer(place: Launched, config: Config, met: Met) -> None:
    try:
        with _ready(place, config, met) as context:
            answer_calls(_part(context, roles_of(config.parallel, place.size), None), met.channels)
    except Exception as error:  # noqa: BLE001 - not swallowed: the first rank says it and ends all
        met.heartbeats.tell_failure(error)


def _meet(place: Launched, config: Config) -> Met:
    store = open_store(place)
    channels = open_channels(place, store)
    force = end_leader if place.leads else end_follower
    return Met(
        store=store,
        channels=channels,
        heartbeats=PeerHeartbeats(channels.life, limit=config.cluster.actor_timeout, force=force),
    )


@contextmanager
def _ready(place: Launched, config: Config, met: Met) -> Iterator[RankContext]:
    """Set this rank's device, join the training ranks, and connect to those that only sample."""
    device = choose_device(config.model)
    if device.type == "cuda":
        device = torch.device("cuda", device_index(place, visible=torch.cuda.device_count()))
        torch.cuda.set_device(device)
    if place.is_one_machine:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # nothing listens where others could reach it
    roles = roles_of(config.parallel, place.size)
    with _training_group(place, roles, met, device):
        yield RankContext(
            rank=place.rank,
            device=device,
            cores=_cores(place),
            broadcast_group=_broadcast_group(place, roles, met, device),
        )


def _training_group(place: Launched, roles: Roles, met: Met, device: torch.device) -> AbstractContextManager[None]:
    if place.rank not in roles.training:
        return nullcontext()
    meeting = Meeting(opened=dist.PrefixStore("training", met.store))
    size = len(roles.training)
    return process_group(meeting, rank=place.rank, size=size, device=device, timeout=COLLECTIVE_SECONDS)


def _broadcast_group(place: Launched, roles: Roles, met: Met, device: torch.device) -> BroadcastGroup | None:
    there = [0, *roles.sampling]
    if not roles.are_apart or place.rank not in there:
        return None
    store, number = dist.PrefixStore("sampling", met.store), there.index(place.rank)
    return WeightsGroup(store, rank=number, size=len(there), device=device, timeout=COLLECTIVE_SECONDS)


def _cores(place: Launched) -> int:
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return place.cores or max(1, there // place.local_size)


def _part(context: RankContext, roles: Roles, functions: Mapping[str, RewardFunction] | None) -> Callable[..., Any]:
    """Constructor of this rank's object, given configuration, run size and checkpoint."""
    if not roles.are_apart:
        return partial(ColocatedRank, context, functions)
    return partial(TrainingRank if context.rank in roles.training else SamplingRank, context)


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


def _status_of(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return getattr(error, "exit_status", PacelineError.exit_status)
