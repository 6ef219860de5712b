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
from paceline.training.backend import Backend, make_task_sampler
from paceline.training.setup.run_inputs import RunInputs
from paceline.workers.backend import StoredWeights, WorkerBackend
from paceline.workers.group import WorkerGroup
from paceline.workers.ray.ray_actors import RayWorkers, SamplerActor, Share, TrainerActor, driver_address, ray_cluster


@contextmanager
def on_a_cluster(config: Config, inputs: RunInputs, checkpoint: Checkpoint | None) -> Iterator[Backend]:
    """Build the backend of a run with `--cluster`, a `BackendFactory`."""
    options, size = config.cluster, inputs.run_size
    # on a cluster of this machine processes share all cores
    here = (os.cpu_count() or 1) // (options.num_producers + options.num_consumers)
    cpus = config.model.threads or (max(1, here) if options.ray_address is None else 1)
    share = Share(cpus=cpus, gpus=1 if choose_device(config.model).type == "cuda" else 0)
    done, path = (0, None) if checkpoint is None else (checkpoint.state.step, checkpoint.path.absolute())
    with ray_cluster(options, share), _meeting(options) as meeting:
        actors = RayWorkers(TrainerActor, "trainer", options.num_consumers, share, config, meeting, size, path)
        trainers = WorkerGroup(actors, "trainer")
        actors = RayWorkers(SamplerActor, "sampler", options.num_producers, share, config, spread=True)
        samplers = WorkerGroup(actors, "sampler")
        weights = StoredWeights(trainers, samplers, done=done)
        task_sampler = make_task_sampler(config, inputs, checkpoint)
        backend = WorkerBackend(config, inputs, task_sampler, weights=weights, samplers=samplers, done=done)
        try:
            backend.sentences = (_layout(options), *trainers.ask("sentences"))
            yield backend
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


def _layout(options: ClusterConfig) -> str:
    where = "a cluster of this machine" if options.ray_address is None else f"the cluster at {options.ray_address}"
    ahead = options.max_staleness
    order = f"sampling is up to {ahead} step{'s' * (ahead > 1)} ahead of training"
    if options.on_new_weights == "continue":
        order += " and takes new weights between two tokens: this run cannot be repeated bit for bit"
    order = order if ahead else "sampling and training take turns"
    counted = f"{_count(options.num_producers, 'sampler')} and {_count(options.num_consumers, 'trainer')}"
    return f"{counted} on {where}; {order}"


def _count(number: int, noun: str) -> str:
    return f"one {noun}" if number == 1 else f"{number} {noun}s"
