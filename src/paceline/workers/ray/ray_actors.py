"""Producers and consumers as actors of Ray: the only file that knows it."""

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from paceline.workers.ray.consuming import ConsumerContext, ConsumingProcess
from paceline.workers.ray.producing import ProducingProcess
from paceline.workers.ray.weights import Manifest
from paceline.workers.ray.worker_group import Lost

START_SECONDS = 600.0
"""An actor that takes longer to read its model counts as lost."""
STACKS_SECONDS = 5.0
"""That an actor may take to say where its threads stand."""
LOOK_UPS = 4
"""How often within the time that an actor may be silent it is asked for a sign of life."""

# an option of actors that Ray's own overloads leave out
_WATCHED = ray.remote(concurrency_groups={"watch": 1})  # type: ignore[call-overload]
_TOLD = ray.remote(concurrency_groups={"watch": 1, "tell": 1})  # type: ignore[call-overload]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sign:
    """What an actor says of itself."""

    node: str
    """Ray's name of its machine."""
    process: int
    """Its number there."""
    heartbeat: int
    """Events so far: see `Heartbeat`."""
    latest: str


class _Watch:
    """What lets an actor be asked whether it is alive while it works."""

    @ray.method(concurrency_group="watch")
    def ping(self) -> Sign:
        """A sign of life, unless it is gone or stopped."""
        node, process = ray.get_runtime_context().get_node_id(), os.getpid()
        return Sign(node=node, process=process, heartbeat=HEARTBEAT.count, latest=HEARTBEAT.latest)

    @ray.method(concurrency_group="watch")
    def stacks(self) -> str:
        """Where its threads stand."""
        with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
            write_stacks(Path(folder, "stacks"))
            return Path(folder, "stacks").read_text()


@_TOLD
class ProducerActor(_Watch, ProducingProcess):
    """A producer."""

    @ray.method(concurrency_group="tell")
    def offer(self, manifest: Manifest, *buckets: Sequence[np.ndarray]) -> None:
        """See `ProducingProcess`: heard while it samples."""
        super().offer(manifest, *buckets)


@_WATCHED
class ConsumerActor(_Watch, ConsumingProcess):
    """A consumer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What each actor asks of the cluster."""

    cpus: int
    """Also its threads, where `--threads` does not say."""
    gpus: int


@contextmanager
def ray_cluster(options: ClusterConfig, share: Share) -> Iterator[None]:
    """A connection to the cluster at `ray_address`, or a cluster of this machine alone for as long as this lasts.

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
    """An actor that does one call at a time and is asked for signs of life meanwhile."""

    def __init__(self, name: str, actor: Any, *, timeout: float) -> None:
        """`timeout`: seconds that it may be silent once it is up."""
        self.name, self.actor, self.timeout = name, actor, timeout
        self.call: Any = None
        self._first_ping, self._silence, self._heartbeat = actor.ping.remote(), "", -1
        HEARTBEAT.stack_dumps[name] = self._write_stacks

    def start(self, method: str, arguments: Sequence[object]) -> None:
        """Begin a call."""
        self.call = getattr(self.actor, method).remote(*arguments)

    def is_silent(self) -> bool:
        """Whether no sign of life comes within the time for it; then the call counts as lost."""
        is_up = bool(ray.wait([self._first_ping], timeout=0)[0])
        limit = self.timeout if is_up else START_SECONDS
        ping = self.actor.ping.remote()
        found, _ = ray.wait([ping, self.call], timeout=limit)
        if ping in found:
            self._note(ping)
        self._silence = "" if found else f"{self.name} gave no sign of life for {limit:g} s"
        return not found

    def _note(self, ping: Any) -> None:
        """What goes on in the actor is progress of the run."""
        with suppress(RayActorError):  # the call's answer will say so
            sign: Sign = ray.get(ping)
            if sign.heartbeat != self._heartbeat:
                self._heartbeat = sign.heartbeat
                HEARTBEAT.beat(self.name, sign.latest)

    def _write_stacks(self, folder: Path) -> None:
        """See `Heartbeat.stack_dumps`; one that is gone or stopped writes nothing."""
        with suppress(RayActorError, GetTimeoutError):
            text = ray.get(self.actor.stacks.remote(), timeout=STACKS_SECONDS)
            (folder / f"{self.name.replace(' ', '-')}.txt").write_text(text)

    def end(self) -> None:
        """End the process; one that is stopped does not hear what Ray tells it."""
        HEARTBEAT.stack_dumps.pop(self.name, None)
        ray.kill(self.actor)
        if not ray.wait([self._first_ping], timeout=0)[0]:
            return
        with suppress(ProcessLookupError, RayActorError):
            sign: Sign = ray.get(self._first_ping)
            if sign.node == ray.get_runtime_context().get_node_id():
                os.kill(sign.process, signal.SIGKILL)

    def answer(self) -> Any:
        """What the call gave, or the error that it raised.

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
    """In one line: of an actor that could not be made the last one of its traceback, which says what it raised."""
    first = first_line(error)
    return str(error).strip().splitlines()[-1].strip() if "creation task" in first else first


def first_to_end(actors: Sequence[WatchedActor]) -> WatchedActor:
    """Any of these whose call has ended, or which is silent."""
    calls = {one.call: one for one in actors}
    while True:
        ended, _ = ray.wait(list(calls), timeout=actors[0].timeout / LOOK_UPS)
        if ended:
            return calls[ended[0]]
        for one in actors:
            if one.is_silent():
                return one


class RayWorkers:
    """`KeepingWorkers` on actors of Ray."""

    def __init__(self, start: Callable[[int], WatchedActor], count: int) -> None:
        """Start them all, by their numbers; they read their models side by side."""
        self._start, self._ended = start, False
        self._actors = [start(number) for number in range(count)]

    @property
    def count(self) -> int:
        """See `Workers`."""
        return len(self._actors)

    def start(self, worker: int, method: str, arguments: tuple[Any, ...]) -> None:
        """See `Workers`."""
        self._actors[worker].start(method, arguments)

    def tell(self, worker: int, method: str, arguments: tuple[Any, ...]) -> None:
        """See `Workers`."""
        getattr(self._actors[worker].actor, method).remote(*arguments)

    def wait(self, busy: Collection[int]) -> int:
        """See `Workers`."""
        return self._actors.index(first_to_end([self._actors[worker] for worker in busy]))

    def answer(self, worker: int) -> Any:
        """See `Workers`."""
        return self._actors[worker].answer()

    def keep(self, worker: int, method: str, arguments: tuple[Any, ...]) -> Any:
        """See `KeepingWorkers`. The driver owns what the reference stands for: the actor's end leaves it."""
        return getattr(self._actors[worker].actor, method).remote(*arguments)

    def replace(self, worker: int) -> None:
        """See `Workers`."""
        if self._ended:
            raise TrainingError("the run is over; its processes are not replaced any more")
        self._actors[worker].end()
        self._actors[worker] = self._start(worker)

    def end(self) -> None:
        """See `Workers`."""
        self._ended = True
        for one in self._actors:
            one.end()


def ray_producers(config: Config, share: Share) -> RayWorkers:
    """All producers, each a `ProducingProcess`."""
    scheduling = "SPREAD" if config.cluster.placement == "spread" else "DEFAULT"

    def start(number: int) -> WatchedActor:
        return _watched(ProducerActor, share, f"producer {number}", config, scheduling=scheduling)

    return RayWorkers(start, config.cluster.num_producers)


def ray_consumers(
    config: Config, share: Share, meeting: Meeting | None, run_size: RunSize, checkpoint: Path | None
) -> RayWorkers:
    """All consumers, each a `ConsumingProcess`; `meeting` None: there is one."""
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
    """Under which the other machines of the cluster reach this process."""
    return str(ray.util.get_node_ip_address())
