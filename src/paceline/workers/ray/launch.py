"""The entry point of `--cluster`: start the actors, and end everything with the run."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.checkpoints.finding import Checkpoint
from paceline.config.layout import ClusterConfig
from paceline.config.sections import Config
from paceline.models.parallel.process_group import Meeting, meeting_at
from paceline.runtime.devices import choose_device
from paceline.runtime.timeline import Recorder
from paceline.training.backend import ReadyBackend, make_task_sampler
from paceline.training.setup.run_inputs import RunInputs
from paceline.workers.ray.backend import ClusterBackend
from paceline.workers.ray.consumers import Consumers
from paceline.workers.ray.ray_actors import Share, driver_address, ray_cluster, ray_consumers, ray_producers
from paceline.workers.ray.worker_group import WorkerGroup


@contextmanager
def on_a_cluster(config: Config, inputs: RunInputs, checkpoint: Checkpoint | None) -> Iterator[ReadyBackend]:
    """Build the backend of a run with `--cluster`, a `BackendFactory`."""
    share = Share(cpus=_cores(config), gpus=1 if choose_device(config.model).type == "cuda" else 0)
    done, path = (0, None) if checkpoint is None else (checkpoint.state.step, checkpoint.path.absolute())
    with ray_cluster(config.cluster, share), _meeting(config.cluster) as meeting:
        recorder = Recorder()
        consumers = Consumers(ray_consumers(config, share, meeting, inputs.run_size, path), recorder)
        group = WorkerGroup(ray_producers(config, share), recorder, inputs.progress)
        task_sampler = make_task_sampler(config, inputs, checkpoint)
        backend = ClusterBackend(config, inputs, task_sampler, consumers=consumers, group=group, done=done)
        try:
            yield ReadyBackend(backend=backend, sentences=(_layout(config), *consumers.ask("sentences")))
        finally:
            backend.close()


@contextmanager
def _meeting(options: ClusterConfig) -> Iterator[Meeting | None]:
    """Rendezvous of several trainers; on one machine a file, so that no port is open."""
    if options.num_consumers == 1:
        yield None
    elif options.ray_address is not None:
        with meeting_at(driver_address()) as meeting:
            yield meeting
    else:
        with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
            yield Meeting(file=Path(folder, "ranks"))


def _cores(config: Config) -> int:
    """CPU cores per process; on a cluster of this machine they share all cores."""
    options = config.cluster
    processes = options.num_producers + options.num_consumers
    here = (os.cpu_count() or 1) // processes if options.ray_address is None else 1
    return config.model.threads or max(1, here)


def _layout(config: Config) -> str:
    options = config.cluster
    where = "a cluster of this machine" if options.ray_address is None else f"the cluster at {options.ray_address}"
    ahead = options.max_staleness
    order = f"sampling is up to {ahead} step{'s' * (ahead > 1)} ahead of training"
    if options.on_new_weights == "continue":
        order += " and takes new weights between two tokens: this run cannot be repeated bit for bit"
    order = order if ahead else "sampling and training take turns"
    counted = f"{_count(options.num_producers, 'producer')} and {_count(options.num_consumers, 'consumer')}"
    return f"{counted} on {where}; {order}"


def _count(number: int, noun: str) -> str:
    return f"one {noun}" if number == 1 else f"{number} {noun}s"
