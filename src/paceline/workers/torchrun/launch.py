"""Ranks of a launch as one program sees them: they meet once, and then do together what the first one leads."""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from types import FrameType
from typing import Any, cast

import torch
import torch.distributed as dist

from paceline.checkpoints.finding import Checkpoint
from paceline.config.sections import Config
from paceline.errors import INTERRUPTED, PacelineError, ProcessLost
from paceline.models.parallel.process_group import JOIN_SECONDS, Meeting, RankLost, process_group
from paceline.runtime.activity import ACTIVITY
from paceline.runtime.devices import choose_device
from paceline.runtime.interrupts import StopRequest, give_signal_back, may_take, take_signal
from paceline.training.backend import Backend, make_task_sampler
from paceline.training.run import START
from paceline.training.setup.checks import NO_OBJECTS
from paceline.training.setup.inputs import RunInputs, RunObjects
from paceline.workers.backend import BroadcastWeights, RankWeights, WorkerBackend, schedule_sentence
from paceline.workers.group import WorkerGroup
from paceline.workers.torchrun.environment import Launched, device_index
from paceline.workers.torchrun.heartbeats import Ended, PeerHeartbeats, end_follower, end_leader
from paceline.workers.torchrun.rank import (
    BLAME_SECONDS,
    LEAVE,
    RankWorker,
    RankWorkers,
    Roles,
    follow_calls,
    handle_events,
    roles_of,
)
from paceline.workers.torchrun.rendezvous import SocketChannels, open_channels, open_store
from paceline.workers.weight_sync import WeightsGroup
from paceline.workers.worker import COLLECTIVE_SECONDS, TrainerWorker

GRACE_SECONDS = 30.0
"""Seconds that a rank which reported its error waits for the first rank to print it."""


class Joined:
    """This process among the ranks of its launch: met once, and open for as long as the process lives."""

    def __init__(self, process: Launched) -> None:
        """Meet the others.

        Raises:
            ProcessLost: not all of them came.
        """
        self.process = process
        self.store: dist.Store = open_store(process)  # the first rank's is the server: it stays as long as the process
        self.channels: SocketChannels = open_channels(process, self.store)
        self.is_over = False
        """True once ranks ended by an error: nothing can follow."""
        self._roles: tuple[Roles, torch.device] | None = None
        self._group: WeightsGroup | None = None
        self._open, self._meetings = ExitStack(), 0

    def groups(self, roles: Roles, device: torch.device) -> WeightsGroup | None:
        """Have the process groups of these roles; returns that of the first rank and those that only sample."""
        if self._roles == (roles, device):
            return self._group
        self._open.close()  # those of a program's last run, whose roles were others
        self._roles, self._group, self._meetings = (roles, device), None, self._meetings + 1
        rank = self.process.rank
        if rank in roles.training:
            self._join_training(roles, device)
        there = [0, *roles.sampling]
        if roles.are_apart and rank in there:
            store, size = dist.PrefixStore(f"sampling/{self._meetings}", self.store), len(there)
            number = there.index(rank)
            self._group = WeightsGroup(store, rank=number, size=size, device=device, timeout=COLLECTIVE_SECONDS)
        return self._group

    def _join_training(self, roles: Roles, device: torch.device) -> None:
        size = len(roles.training)
        if dist.is_initialized():  # the program's own, by a library of the launcher's
            if dist.get_world_size() == size:
                return
            raise ProcessLost(
                f"torch's default process group has {dist.get_world_size()} ranks and {size} train; make the trainer "
                "before anything that opens a group, such as accelerate's PartialState"
            )
        meeting = Meeting(opened=dist.PrefixStore(f"training/{self._meetings}", self.store))
        group = process_group(meeting, rank=self.process.rank, size=size, device=device, timeout=COLLECTIVE_SECONDS)
        self._open.enter_context(group)

    def close(self) -> None:
        """Leave the process groups, unless others may be gone: that would wait for them. vLLM leaves them itself."""
        if not self.is_over and dist.is_initialized() and "vllm" not in sys.modules:
            self._open.close()


_joined = list[Joined]()
"""This process's connection, once it has met the others."""


class Launch:
    """A program on ranks: its objects on each of them, and the first rank's calls on all.

        launch = Launch(process, config, objects)
        if not process.leads:
            return launch.follow("train")
        with launch.lead("train"):
            launch.result = ...       # with `launch.on_all_ranks` as the backend

    Every rank makes one with the same options. What the first one leads, once or several times, every other follows
    by the same name and in the same order. Signals are those of the first rank.
    """

    def __init__(self, process: Launched, config: Config, objects: RunObjects = NO_OBJECTS) -> None:
        """`objects` are this rank's own objects; nothing is met yet."""
        self.process, self._config, self._objects = process, config, objects
        self.result: Any = None
        """Result that every rank returns."""
        self.program: Any = None
        """A program's own object on this rank; the first rank can `call` its methods on all."""
        self._worker: RankWorker | None = None
        self._heartbeats: PeerHeartbeats | None = None

    @property
    def worker(self) -> RankWorker:
        """This rank; there is one once the ranks have met."""
        assert self._worker is not None
        return self._worker

    @property
    def is_leading(self) -> bool:
        """True on the first rank while the others follow."""
        return self._heartbeats is not None

    @contextmanager
    def lead(self, name: str = "train") -> Iterator[None]:
        """Have the others answer calls. All get `result` in the end, or end with the status of what ends this.

        Raises:
            ProcessLost: not all of them came, or one does something else; later on, one of them is gone or silent.
        """
        joined, others = self._join(), range(1, self.process.size)
        joined.is_over = True  # until all have come
        for rank in others:
            try:
                theirs = joined.channels.receive(rank, seconds=JOIN_SECONDS)
            except RankLost as lost:
                raise ProcessLost(f"the first rank waits for all in {name}: {lost}") from None
            if theirs != name:
                raise ProcessLost(
                    f"rank {rank} came to {theirs} and the first rank to {name}: all ranks run one program, and do the "
                    "same in the same order"
                )
        joined.is_over = False
        joined.channels.send(others, name)
        with self._beating(joined, end_leader) as heartbeats, told_apart_from_a_loss(heartbeats):
            try:
                ACTIVITY.stack_dumps["ranks"] = heartbeats.ask_for_stacks
                self._be_ready(joined)
                yield
                heartbeats.leave()
                joined.channels.send(others, (LEAVE, (self.result,)))
                for rank in others:
                    joined.channels.send_event(rank, (LEAVE, ()))
                for rank in others:  # then their ends are not taken for losses
                    joined.channels.receive(rank, seconds=GRACE_SECONDS)
            except BaseException as error:
                joined.is_over = True
                culprit = heartbeats.verdict(BLAME_SECONDS) if is_of_an_unnamed_loss(error) else None
                heartbeats.leave()
                status = getattr(culprit or error, "exit_status", PacelineError.exit_status)
                if isinstance(error, SystemExit) and isinstance(error.code, int):
                    status = error.code
                heartbeats.tell_end(INTERRUPTED if isinstance(culprit or error, KeyboardInterrupt) else status)
                if culprit is not None:
                    raise culprit from None
                raise

    def follow(self, name: str = "train") -> Any:
        """Answer the first rank's calls until it is done with what it leads; returns its `result`.

        The first rank handles a first signal, which this rank gets too.

        Raises:
            SystemExit: what the first rank led ended by an error, or it is gone; with the status of all ranks.
            ProcessLost: not all of them came.
        """
        with StopRequest() if _is_main() else nullcontext():
            joined = self._join()
            try:
                joined.channels.send([0], name)
                joined.channels.receive(0, seconds=COLLECTIVE_SECONDS)
            except RankLost as lost:
                joined.is_over = True
                raise ProcessLost(f"rank {self.process.rank} waits for the first one in {name}: {lost}") from None
            try:
                with self._beating(joined, end_follower) as heartbeats:
                    try:
                        self._be_ready(joined)
                        handling = (self, joined.channels, heartbeats.tell_failure)
                        events = threading.Thread(target=handle_events, args=handling, name="events", daemon=True)
                        events.start()
                        result = follow_calls(self, joined.channels)
                        events.join(GRACE_SECONDS)  # the next one reads from the same connection
                        heartbeats.leave()
                        joined.channels.send([0], LEAVE)
                        return result
                    except Exception as error:  # noqa: BLE001 - not swallowed: the first rank says it and ends all
                        joined.is_over = True
                        heartbeats.tell_failure(error)
                    heartbeats.raise_verdict(GRACE_SECONDS)
            except Ended as ended:
                joined.is_over = True
                raise SystemExit(ended.status) from None
        raise SystemExit(PacelineError.exit_status)

    def call(self, method: str, *arguments: object) -> list[Any]:
        """Call a method of every rank's `program`, while this rank leads; results by rank."""
        return self._group(range(self.process.size), "program").call(method, *arguments)

    def raise_verdict(self, seconds: float) -> None:
        """Raise the reason why the common work ended, waiting up to `seconds` for it; returns if there is none."""
        if self._heartbeats is not None:
            self._heartbeats.raise_verdict(seconds)

    @contextmanager
    def on_all_ranks(self, config: Config, inputs: RunInputs, checkpoint: Checkpoint | None) -> Iterator[Backend]:
        """Build the backend of a run on all ranks, a `BackendFactory`; the first rank's, while it leads."""
        sentences = self.build(config, inputs, checkpoint)
        backend = self.backend(config, inputs, checkpoint, sentences)
        try:
            yield backend
        except BaseException:
            backend.stop()
            raise
        backend.close()

    def build(self, config: Config, inputs: RunInputs, checkpoint: Checkpoint | None) -> tuple[str, ...]:
        """Have all ranks read the weights, from the checkpoint if there is one, while this one leads.

        Returns what a person should know of them.
        """
        worker, path = self.worker, None if checkpoint is None else checkpoint.path.absolute()
        worker.objects = replace(worker.objects, functions=inputs.functions)
        self._group(range(self.process.size), "worker").call("build", config, inputs.run_size, path)
        copies = ("every rank samples from a whole copy of the weights, renewed after each step",)
        has_copies = worker.is_split and not worker.roles.are_apart
        parts = (worker.roles.sampling, "worker.sampler"), (worker.roles.training, "worker.trainer")
        sentences = [sentence for part in parts for sentence in self._group(*part).ask("sentences")]
        order = (f"{worker.roles.sentence}; {schedule_sentence(config.cluster)}",)
        return (
            *(order if worker.roles.are_apart else (worker.roles.sentence,)),
            *(copies if has_copies else ()),
            *sentences,
        )

    def backend(
        self, config: Config, inputs: RunInputs, checkpoint: Checkpoint | None, sentences: tuple[str, ...] = ()
    ) -> WorkerBackend:
        """The backend of a run on ranks that are built."""
        roles, start = self.worker.roles, START if checkpoint is None else checkpoint.state
        ranks, trainers = self._group(range(self.process.size), "worker"), self._group(roles.training, "worker.trainer")
        samplers = self._group(roles.sampling, "worker.sampler")
        weights: BroadcastWeights | RankWeights
        if roles.are_apart:
            senders, first = self._group([0, *roles.sampling], "worker"), cast(TrainerWorker, self.worker.trainer)
            weights = BroadcastWeights(trainers, samplers, senders, first, done=start.step)
        else:
            weights = RankWeights(ranks, trainers, policy_version=start.policy_version)
        task_sampler = make_task_sampler(config, inputs, checkpoint)
        backend = WorkerBackend(config, inputs, task_sampler, weights=weights, samplers=samplers, done=start.step)
        backend.sentences = sentences
        return backend

    def _group(self, numbers: Sequence[int], part: str) -> WorkerGroup:
        workers = RankWorkers(self, numbers, self._join().channels, self.raise_verdict, part=part)
        # where the first rank samples too, its engine says more
        return WorkerGroup(workers, "rank", is_counted=self.worker.roles.are_apart)

    def _join(self) -> Joined:
        if not _joined:
            _joined.append(Joined(self.process))
            atexit.register(_joined[0].close)
        if _joined[0].is_over:
            raise ProcessLost("the ranks of this launch have ended what they did by an error; start all of them again")
        return _joined[0]

    @contextmanager
    def _beating(self, joined: Joined, force: Callable[[BaseException], None]) -> Iterator[PeerHeartbeats]:
        limit = self._config.cluster.actor_timeout
        with PeerHeartbeats(joined.channels.heartbeats, limit=limit, force=force) as heartbeats:
            self._heartbeats = heartbeats
            try:
                yield heartbeats
            finally:
                self._heartbeats = None

    def _be_ready(self, joined: Joined) -> None:
        """Set this rank's device, join the training ranks, and connect to those that only sample."""
        if self._worker is not None:
            return
        process, config = self.process, self._config
        device, roles = choose_device(config.model), roles_of(config.parallel, process.size)
        if device.type == "cuda":
            device = torch.device("cuda", device_index(process, visible=torch.cuda.device_count()))
            torch.cuda.set_device(device)
        here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        cores = process.cores or max(1, here // process.local_size)
        if process.is_one_machine:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # nothing listens where others could reach it
        group = joined.groups(roles, device)
        self._worker = RankWorker(
            rank=process.rank, roles=roles, device=device, cores=cores, broadcast_group=group, objects=self._objects
        )


def is_of_an_unnamed_loss(error: BaseException) -> bool:
    """Return True if another rank was lost, and the error does not say which: it has only lost touch, or a launcher's
    SIGTERM came while that was on its way out."""
    if isinstance(error, ProcessLost):
        return False
    known = error
    while known.__context__ is not None and not isinstance(known, RankLost):
        known = known.__context__
    return isinstance(known, RankLost)


@contextmanager
def told_apart_from_a_loss(heartbeats: PeerHeartbeats) -> Iterator[None]:
    """Interrupt on SIGTERM outside the loop, unless a rank died: launchers send it then too, also while this rank is on
    its way out for that reason."""

    def stop(number: int, frame: FrameType | None) -> None:
        if heartbeats.verdict(1.0) is None:
            raise KeyboardInterrupt
        heartbeats.raise_verdict()

    if not _is_main() or not may_take(signal.SIGTERM):
        yield
        return
    take_signal(signal.SIGTERM, stop)
    try:
        yield
    except BaseException:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it may come before the error is printed
        raise
    give_signal_back(signal.SIGTERM)


def _is_main() -> bool:
    """False in a thread of a program's own, which gets no signals."""
    return threading.current_thread() is threading.main_thread()
