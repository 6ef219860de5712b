"""Samplers and trainers as actors of Ray; no other file imports Ray."""

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

if "ray" not in sys.modules:
    # it looks once, when it is imported: with a token, other users of the machine cannot reach a run's cluster
    os.environ.setdefault("RAY_AUTH_MODE", "token")

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from paceline.config.layout import ClusterConfig
from paceline.config.sections import Config
from paceline.errors import ConfigError, EngineError, TrainingError, first_line
from paceline.models.parallel.process_group import Meeting
from paceline.runtime.heartbeat import HEARTBEAT
from paceline.runtime.watchdog import write_stacks
from paceline.training.setup.run_inputs import RunSize
from paceline.workers.ray.consumers import KeepingWorkers
from paceline.workers.ray.consuming import ConsumerContext, ConsumingProcess
from paceline.workers.ray.producing import ProducingProcess
from paceline.workers.ray.weights import Manifest
from paceline.workers.ray.worker_group import Lost

START_SECONDS = 600.0
"""Deadline of an actor for reading its model; after it the actor counts as lost."""
STACKS_SECONDS = 5.0
"""Timeout of a stack dump, in seconds."""
LOOK_UPS = 4
"""Heartbeats requested within the time that an actor may be silent."""

# an option of actors that Ray's own overloads leave out
_WATCHED = ray.remote(concurrency_groups={"watch": 1})  # type: ignore[call-overload]
_TOLD = ray.remote(concurrency_groups={"watch": 1, "tell": 1})  # type: ignore[call-overload]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sign:
    """A heartbeat of an actor."""

    node: str
    """Ray's id of the machine."""
    process: int
    """Process id there."""
    heartbeat: int
    """Number of events so far: see `Heartbeat`."""
    latest: str


class _Watch:
    """Methods that answer while the actor works."""

    @ray.method(concurrency_group="watch")
    def ping(self) -> Sign:
        """A heartbeat; none comes from an actor that is gone or stopped."""
        node, process = ray.get_runtime_context().get_node_id(), os.getpid()
        return Sign(node=node, process=process, heartbeat=HEARTBEAT.count, latest=HEARTBEAT.latest)

    @ray.method(concurrency_group="watch")
    def stacks(self) -> str:
        """Stack dump of all threads."""
        with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
            write_stacks(Path(folder, "stacks"))
            return Path(folder, "stacks").read_text()


@_TOLD
class ProducerActor(_Watch, ProducingProcess):
    """A producer."""

    @ray.method(concurrency_group="tell")
    def offer(self, manifest: Manifest, *buckets: Sequence[np.ndarray]) -> None:
        """As `ProducingProcess.offer`, in a thread of its own while the actor samples."""
        super().offer(manifest, *buckets)


@_WATCHED
class ConsumerActor(_Watch, ConsumingProcess):
    """A consumer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """Resources of each actor."""

    cpus: int
    """CPU cores; also the number of threads unless `--threads` says otherwise."""
    gpus: int


@contextmanager
def ray_cluster(options: ClusterConfig, share: Share) -> Iterator[None]:
    """Connect to the cluster at `ray_address`, or run a cluster on this machine for the duration of the context.

    Raises:
        ConfigError: there is no cluster at the address.
    """
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "paceline"}
    if options.ray_address is None:
        # a producer that was lost may hold its share until it is gone
        actors = 2 * options.num_producers + options.num_consumers
        own: dict[str, Any] = {"address": "local", "num_cpus": actors * share.cpus, "_node_ip_address": "127.0.0.1"}
        ray.init(include_dashboard=False, **own, **common)
    else:
        try:
            ray.init(address=options.ray_address, **common)
        except ConnectionError as error:
            raise ConfigError(
                f"--ray-address must be a running Ray cluster's, got {options.ray_address!r}; start one with "
                f"`ray start --head`, or leave it out ({error})"
            ) from None
    try:
        yield
    finally:
        ray.shutdown()


class WatchedActor:
    """An actor that does one call at a time and answers heartbeats meanwhile."""

    def __init__(self, name: str, actor: Any, *, timeout: float) -> None:
        """`timeout`: seconds of silence after which a started actor counts as lost."""
        self.name, self.actor, self.timeout = name, actor, timeout
        self.call: Any = None
        self._first_ping, self._silence, self._heartbeat = actor.ping.remote(), "", -1
        HEARTBEAT.stack_dumps[name] = self._write_stacks

    def start(self, method: str, arguments: Sequence[object]) -> None:
        """Begin a call."""
        self.call = getattr(self.actor, method).remote(*arguments)

    def is_silent(self) -> bool:
        """True if no heartbeat comes in time; then the call counts as lost."""
        is_up = bool(ray.wait([self._first_ping], timeout=0)[0])
        limit = self.timeout if is_up else START_SECONDS
        ping = self.actor.ping.remote()
        found, _ = ray.wait([ping, self.call], timeout=limit)
        if ping in found:
            self._note(ping)
        self._silence = "" if found else f"{self.name} gave no sign of life for {limit:g} s"
        return not found

    def _note(self, ping: Any) -> None:
        """Count events in the actor as progress of the run."""
        with suppress(RayActorError):  # the call's answer will say so
            sign: Sign = ray.get(ping)
            if sign.heartbeat != self._heartbeat:
                self._heartbeat = sign.heartbeat
                HEARTBEAT.beat(self.name, sign.latest)

    def _write_stacks(self, folder: Path) -> None:
        """Write a stack dump of the actor, a `Heartbeat.stack_dumps`; nothing if it is gone or stopped."""
        with suppress(RayActorError, GetTimeoutError):
            text = ray.get(self.actor.stacks.remote(), timeout=STACKS_SECONDS)
            (folder / f"{self.name.replace(' ', '-')}.txt").write_text(text)

    def end(self) -> None:
        """End the process, also one that is stopped and cannot hear Ray."""
        HEARTBEAT.stack_dumps.pop(self.name, None)
        ray.kill(self.actor)
        if not ray.wait([self._first_ping], timeout=0)[0]:
            return
        with suppress(ProcessLookupError, RayActorError):
            sign: Sign = ray.get(self._first_ping)
            if sign.node == ray.get_runtime_context().get_node_id():
                os.kill(sign.process, signal.SIGKILL)

    def answer(self) -> Any:
        """Result of the call.

        Raises:
            Lost: the actor is gone, or was silent.
        """
        call, self.call = self.call, None
        if self._silence:
            raise Lost(self._silence)
        try:
            return ray.get(call)
        except RayTaskError as error:
            if isinstance(error.cause, EngineError):
                raise Lost(f"{self.name} has an engine no more ({error.cause})") from None
            raise (error.cause or error) from None
        except RayActorError as error:
            raise Lost(f"{self.name} is gone ({reason_of(error)})") from None


def reason_of(error: RayActorError) -> str:
    """One line on the error; for an actor that could not be created, the last line of its traceback."""
    first = first_line(error)
    return str(error).strip().splitlines()[-1].strip() if "creation task" in first else first


def first_to_end(actors: Sequence[WatchedActor]) -> WatchedActor:
    """The first of these actors whose call has ended, or which is silent."""
    calls = {one.call: one for one in actors}
    while True:
        ended, _ = ray.wait(list(calls), timeout=actors[0].timeout / LOOK_UPS)
        if ended:
            return calls[ended[0]]
        for one in actors:
            if one.is_silent():
                return one


class RayWorkers(KeepingWorkers):
    """`KeepingWorkers` on actors of Ray."""

    def __init__(self, start: Callable[[int], WatchedActor], count: int) -> None:
        """Start all actors; they read their models at the same time."""
        self._start, self._ended = start, False
        self._actors = [start(number) for number in range(count)]

    @property
    @override
    def count(self) -> int:
        return len(self._actors)

    @override
    def start(self, worker: int, method: str, arguments: tuple[Any, ...]) -> None:
        self._actors[worker].start(method, arguments)

    @override
    def tell(self, worker: int, method: str, arguments: tuple[Any, ...]) -> None:
        getattr(self._actors[worker].actor, method).remote(*arguments)

    @override
    def wait(self, busy: Collection[int]) -> int:
        return self._actors.index(first_to_end([self._actors[worker] for worker in busy]))

    @override
    def answer(self, worker: int) -> Any:
        return self._actors[worker].answer()

    @override
    def keep(self, worker: int, method: str, arguments: tuple[Any, ...]) -> Any:
        """The driver owns the referenced object, so it outlives the actor."""
        return getattr(self._actors[worker].actor, method).remote(*arguments)

    @override
    def replace(self, worker: int) -> None:
        if self._ended:
            raise TrainingError("the run is over; its processes are not replaced any more")
        self._actors[worker].end()
        self._actors[worker] = self._start(worker)

    @override
    def end(self) -> None:
        self._ended = True
        for one in self._actors:
            one.end()


def ray_producers(config: Config, share: Share) -> RayWorkers:
    """All samplers, one `ProducingProcess` each."""
    scheduling = "SPREAD" if config.cluster.placement == "spread" else "DEFAULT"

    def start(number: int) -> WatchedActor:
        return _watched(ProducerActor, share, f"producer {number}", config, scheduling=scheduling)

    return RayWorkers(start, config.cluster.num_producers)


def ray_consumers(
    config: Config, share: Share, meeting: Meeting | None, run_size: RunSize, checkpoint: Path | None
) -> RayWorkers:
    """All trainers, one `ConsumingProcess` each; `meeting` is None for a single one."""
    size = config.cluster.num_consumers

    def start(number: int) -> WatchedActor:
        context = ConsumerContext(rank=number, size=size, meeting=meeting)
        return _watched(ConsumerActor, share, f"consumer {number}", config, context, run_size, checkpoint)

    return RayWorkers(start, size)


def _watched(
    kind: Any, share: Share, name: str, config: Config, *arguments: object, scheduling: str = "DEFAULT"
) -> WatchedActor:
    options = {"num_cpus": share.cpus, "num_gpus": share.gpus, "scheduling_strategy": scheduling}
    actor = kind.options(**options).remote(config, Path.cwd(), *arguments)
    return WatchedActor(name, actor, timeout=config.cluster.actor_timeout)


def driver_address() -> str:
    """Address by which the cluster's other machines reach this process."""
    return str(ray.util.get_node_ip_address())
