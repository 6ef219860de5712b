"""The backend of `--cluster`: samplers and trainers as actors of Ray. No other file imports Ray."""

import os
import signal
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from typing_extensions import override

if "ray" not in sys.modules:
    # it looks once, when it is imported: with a token, other users of the machine cannot reach a run's cluster
    os.environ.setdefault("RAY_AUTH_MODE", "token")

from operator import attrgetter

import numpy as np
import ray
import torch
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from paceline.base_directory import base_directory, hold_base
from paceline.checkpoints.finding import Checkpoint, read_checkpoint
from paceline.config.layout import ClusterConfig
from paceline.config.sections import Config
from paceline.errors import ERRORS, ConfigError, EngineError, PacelineError, TrainingError, first_line
from paceline.models.parallel.mesh_ranks import make_ranks
from paceline.models.parallel.process_group import Meeting, meeting_at, process_group
from paceline.models.parallel.ranks import ONE_RANK, Ranks
from paceline.runtime.activity import ACTIVITY
from paceline.runtime.devices import choose_device
from paceline.runtime.watchdog import write_stacks
from paceline.training.backend import Backend, make_task_sampler
from paceline.training.setup.inputs import RunInputs, RunObjects, RunSize
from paceline.workers.backend import StoredWeights, WorkerBackend
from paceline.workers.group import Lost, WorkerGroup, Workers
from paceline.workers.placement import (
    Location,
    Share,
    check_room,
    gpus_of,
    layout_sentence,
    location_sentences,
)
from paceline.workers.weight_sync import Manifest
from paceline.workers.worker import COLLECTIVE_SECONDS, SamplerWorker, TrainerWorker, load_copy

START_SECONDS = 600.0
"""Deadline of an actor for reading its model; after it the actor counts as lost."""
STACKS_SECONDS = 5.0
"""Timeout of a stack dump, in seconds."""
LOOK_UPS = 4
"""Heartbeats requested within the time that an actor may be silent."""


# an option of actors that Ray's own overloads leave out
_WATCHED = ray.remote(concurrency_groups={"watch": 1})  # type: ignore[call-overload]
_TOLD = ray.remote(concurrency_groups={"watch": 1, "tell": 1})  # type: ignore[call-overload]


class _Watch:
    """Methods that answer while the actor works."""

    @ray.method(concurrency_group="watch")
    def ping(self) -> tuple[str, int, int, str]:
        """A heartbeat: Ray's id of the machine, process id there, number of events so far, the latest event.

        None comes from an actor that is gone or stopped.
        """
        return ray.get_runtime_context().get_node_id(), os.getpid(), ACTIVITY.count, ACTIVITY.latest

    @ray.method(concurrency_group="watch")
    def stacks(self) -> str:
        """Stack dump of all threads."""
        with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
            write_stacks(Path(folder, "stacks"))
            return Path(folder, "stacks").read_text()

    @ray.method(concurrency_group="watch")
    def location(self) -> Location:
        """Machine and device of the actor, once it is there."""
        gpus = ", ".join(str(gpu) for gpu in ray.get_gpu_ids())
        if gpus and torch.cuda.is_available():
            device = f"GPU {gpus} ({torch.cuda.get_device_name()})"
        elif gpus:
            device = f"a CPU, although Ray gave it GPU {gpus}: torch finds no CUDA device there"
        else:
            device = "a CPU"
        has_token = os.environ.get("RAY_AUTH_MODE", "").lower() == "token"
        return Location(node=str(ray.util.get_node_ip_address()), device=device, has_token=has_token)


@_TOLD
class SamplerActor(_Watch, SamplerWorker):
    """A sampler. It samples nothing before its first weights."""

    def __init__(self, config: Config, directory: Path, number: int, objects: RunObjects, images: Path | None) -> None:
        """`directory` is what the configuration's paths are relative to, `images` the folder of the run's images."""
        os.chdir(directory)
        hold_base(directory)
        super().__init__(config, load_copy(config, objects, None, is_apart=True, images=images), objects)

    @ray.method(concurrency_group="tell")
    def offer(self, manifest: Manifest, *buckets: Sequence[np.ndarray]) -> None:
        """As `SamplerWorker.offer`, in a thread of its own while the actor samples."""
        super().offer(manifest, *buckets)


@_WATCHED
class TrainerActor(_Watch, TrainerWorker):
    """A trainer."""

    def __init__(
        self,
        config: Config,
        directory: Path,
        number: int,
        objects: RunObjects,
        meeting: Meeting | None,
        run_size: RunSize,
        checkpoint: Path | None,
    ) -> None:
        """Join the other trainers; `meeting` is None for a single one."""
        os.chdir(directory)
        hold_base(directory)
        ranks: Ranks = ONE_RANK
        if meeting is not None:
            device, size = choose_device(config.model), config.cluster.num_consumers
            self._open = ExitStack()  # for as long as the process lives
            self._open.enter_context(
                process_group(meeting, rank=number, size=size, device=device, timeout=COLLECTIVE_SECONDS)
            )
            ranks = make_ranks(config.parallel, device, offload="parameters" in config.optim.offload)
        start = None if checkpoint is None else read_checkpoint(checkpoint)
        super().__init__(config, run_size, start, objects=objects, ranks=ranks)

    def call_part(self, path: str, *arguments: object) -> Any:
        """Call a method of a part of this actor, such as `trainer.save`."""
        return attrgetter(path)(self)(*arguments)


@contextmanager
def ray_cluster(options: ClusterConfig, cpus: int) -> Iterator[None]:
    """Connect to the cluster at `ray_address`, or run a cluster on this machine for the duration of the context.

    `cpus`: CPU cores of each actor.

    Raises:
        ConfigError: there is no cluster at the address.
    """
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "paceline"}
    if options.ray_address is None:
        # a sampler that was lost may hold its share until it is gone
        actors = 2 * options.num_producers + options.num_consumers
        local: dict[str, Any] = {"address": "local", "num_cpus": actors * cpus, "_node_ip_address": "127.0.0.1"}
        ray.init(include_dashboard=False, **local, **common)
    else:
        try:
            ray.init(address=options.ray_address, **common)
        except ConnectionError as error:
            raise ConfigError(
                f"--cluster must be a running Ray cluster's, got {options.ray_address!r}; start one with "
                f"`ray start --head`, or give --cluster alone ({error})"
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
        ACTIVITY.stack_dumps[name] = self._write_stacks

    def is_silent(self) -> bool:
        """True if no heartbeat comes in time; then the call counts as lost."""
        is_up = bool(ray.wait([self._first_ping], timeout=0)[0])
        limit = self.timeout if is_up else START_SECONDS
        ping = self.actor.ping.remote()
        ready, _ = ray.wait([ping, self.call], timeout=limit)
        if ping in ready:
            with suppress(RayActorError):  # the call's result will say so
                _, _, heartbeat, latest = ray.get(ping)
                if heartbeat != self._heartbeat:  # what happens there is progress of the run
                    self._heartbeat = heartbeat
                    ACTIVITY.beat(self.name, latest)
        self._silence = "" if ready else f"{self.name} gave no sign of life for {limit:g} s"
        return not ready

    def _write_stacks(self, folder: Path) -> None:
        """Write a stack dump of the actor, a `Activity.stack_dumps`; nothing if it is gone or stopped."""
        with suppress(RayActorError, GetTimeoutError):
            text = ray.get(self.actor.stacks.remote(), timeout=STACKS_SECONDS)
            (folder / f"{self.name.replace(' ', '-')}.txt").write_text(text)

    def end(self) -> None:
        """End the process, also one that is stopped and cannot answer Ray."""
        ACTIVITY.stack_dumps.pop(self.name, None)
        ray.kill(self.actor)
        if not ray.wait([self._first_ping], timeout=0)[0]:
            return
        with suppress(ProcessLookupError, RayActorError):
            node, process, _, _ = ray.get(self._first_ping)
            if node == ray.get_runtime_context().get_node_id():
                os.kill(process, signal.SIGKILL)

    def result(self) -> Any:
        """Result of the call; raises Lost where the actor is gone, or was silent."""
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
            reason = reason_of(error)
            if (refusal := refusal_in(reason, self.name)) is not None:
                raise refusal from None
            raise Lost(f"{self.name} is gone ({reason})") from None


def reason_of(error: RayActorError) -> str:
    """One line on the error; for an actor that could not be created, the last line of its traceback."""
    first = first_line(error)
    return str(error).strip().splitlines()[-1].strip() if "creation task" in first else first


def refusal_in(reason: str, actor: str) -> PacelineError | None:
    """Return the error that an actor raised on purpose while it was created, which another actor would raise too.

    >>> str(refusal_in("paceline.errors.ConfigError: --device must be cpu", "trainer 0"))
    'trainer 0: --device must be cpu'
    >>> refusal_in("worker died", "trainer 0") is None
    True
    """
    name, _, sentence = reason.removeprefix("paceline.errors.").partition(": ")
    return ERRORS[name](f"{actor}: {sentence}") if name in ERRORS else None


class RayWorkers(Workers):
    """`Workers` that are actors of Ray."""

    def __init__(
        self, kind: Any, who: str, count: int, share: Share, config: Config, *arguments: object, spread: bool = False
    ) -> None:
        """Start all actors, of class `kind`; they read their models at the same time.

        `who` is the word for one of them, `arguments` are further ones of its constructor, behind its number. `spread`
        places them on as many machines as there are.
        """
        options = {"num_cpus": share.cpus, "num_gpus": share.gpus}
        remote = kind.options(**options, scheduling_strategy="SPREAD" if spread else "DEFAULT").remote

        def start(number: int) -> WatchedActor:
            actor = remote(config, base_directory(), number, *arguments)
            return WatchedActor(f"{who} {number}", actor, timeout=config.cluster.actor_timeout)

        self._start, self._ended = start, False
        self._actors = [start(number) for number in range(count)]

    @property
    @override
    def numbers(self) -> Sequence[int]:
        return range(len(self._actors))

    @override
    def start(self, workers: Collection[int], method: str, arguments: tuple[Any, ...]) -> None:
        for worker in workers:
            self._actors[worker].call = self.keep(worker, method, arguments)

    @override
    def tell(self, worker: int, method: str, arguments: tuple[Any, ...]) -> None:
        self.keep(worker, method, arguments)

    @override
    def wait(self, busy: Collection[int]) -> int:
        calls = {self._actors[worker].call: worker for worker in busy}
        while True:
            ended, _ = ray.wait(list(calls), timeout=self._actors[0].timeout / LOOK_UPS)
            if ended:
                return calls[ended[0]]
            for worker in busy:
                if self._actors[worker].is_silent():
                    return worker

    @override
    def result(self, worker: int) -> Any:
        return self._actors[worker].result()

    @override
    def keep(self, worker: int, method: str, arguments: tuple[Any, ...]) -> Any:
        """The driver owns the referenced object, so it outlives the actor."""
        actor = self._actors[worker].actor
        if "." in method:
            return actor.call_part.remote(method, *arguments)
        return getattr(actor, method).remote(*arguments)

    @override
    def replace(self, worker: int) -> None:
        if self._ended:
            raise TrainingError("the run is over; its processes are not replaced any more")
        self._actors[worker].end()
        self._actors[worker] = self._start(worker)

    @override
    def end(self) -> None:
        self._ended = True
        for actor in self._actors:
            actor.end()

    def locations(self) -> Iterator[tuple[str, Location]]:
        """Name and location of each actor; one that is lost at its start has none and is replaced later."""
        for actor in self._actors:
            with suppress(RayActorError, RayTaskError, GetTimeoutError):
                yield actor.name, ray.get(actor.actor.location.remote(), timeout=START_SECONDS)


@contextmanager
def on_a_cluster(config: Config, inputs: RunInputs, checkpoint: Checkpoint | None) -> Iterator[Backend]:
    """Build the backend of a run with `--cluster`, a `BackendFactory`; a program's functions travel to the actors.

    Raises:
        ConfigError: a program's own model, which other processes cannot share.
    """
    options, size, objects = config.cluster, inputs.run_size, inputs.objects
    if objects.model is not None:
        raise ConfigError(
            f"--model must be a name with --cluster, got a {type(objects.model).__name__}; save it by save_pretrained "
            "and give the directory"
        )
    objects = objects.for_actors()
    # on a cluster of this machine processes share all cores
    here = (os.cpu_count() or 1) // (options.num_producers + options.num_consumers)
    cpus = config.model.threads or (max(1, here) if options.ray_address is None else 1)
    done, path = (0, None) if checkpoint is None else (checkpoint.state.step, checkpoint.path.absolute())
    with ray_cluster(options, cpus), _meeting(options) as meeting:
        share, sampler_share = _shares(config, cpus)
        actors = RayWorkers(TrainerActor, "trainer", options.num_consumers, share, config, objects, meeting, size, path)
        trainers = WorkerGroup(actors, "trainer")
        sampling = RayWorkers(
            SamplerActor, "sampler", options.num_producers, sampler_share, config, objects, size.images, spread=True
        )
        samplers = WorkerGroup(sampling, "sampler")
        weights = StoredWeights(trainers, samplers, done=done)
        task_sampler = make_task_sampler(config, inputs, checkpoint)
        backend = WorkerBackend(config, inputs, task_sampler, weights=weights, samplers=samplers, done=done)
        try:
            computing = trainers.ask("sentences")
            locations = (*actors.locations(), *sampling.locations())
            backend.sentences = (layout_sentence(options), *location_sentences(locations), *computing)
            yield backend
        finally:
            backend.close()


def _shares(config: Config, cpus: int) -> tuple[Share, Share]:
    """Return the resources of a trainer and of a sampler on the connected cluster.

    Raises:
        ConfigError: it has no room for all of them, or no GPU where one is asked for.
    """
    options = config.cluster
    where = "this machine" if options.ray_address is None else f"the cluster at {options.ray_address}"
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    available = sum(node.get("GPU", 0.0) for node in nodes)
    if options.ray_address is None and choose_device(config.model).type != "cuda":
        available = 0.0  # a card that torch cannot use
    trainer, sampler = gpus_of(config, available=available, where=where)
    shares = Share(cpus=cpus, gpus=trainer), Share(cpus=cpus, gpus=sampler)
    check_room(nodes, (options.num_consumers, shares[0]), (options.num_producers, shares[1]), where=where)
    return shares


@contextmanager
def _meeting(options: ClusterConfig) -> Iterator[Meeting | None]:
    """Rendezvous of several trainers; on one machine a file, so that no port is open."""
    if options.num_consumers == 1:
        yield None
    elif options.ray_address is not None:
        # the address by which the cluster's other machines reach this process
        with meeting_at(str(ray.util.get_node_ip_address())) as meeting:
            yield meeting
    else:
        with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
            yield Meeting(file=Path(folder, "ranks"))
