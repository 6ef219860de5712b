"""A cluster's backend in this process: its schedule, threads and weight sync, without Ray and its seconds."""

import io
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.checkpoints.finding import Checkpoint
from paceline.checkpoints.run_directory import RunDir
from paceline.config.building import build_config
from paceline.config.sections import Config
from paceline.training.backend import Backend, BackendFactory, make_task_sampler
from paceline.training.session import train
from paceline.training.setup.inputs import RunInputs, RunObjects
from paceline.training.setup.preparation import prepare
from paceline.training.setup.run_request import RunRequest
from paceline.workers.backend import StoredWeights, WorkerBackend
from paceline.workers.group import WorkerGroup
from paceline.workers.worker import SamplerWorker, TrainerWorker, load_copy
from tests.support.cluster_runs import options_in


@dataclass
class Here:
    """`Workers` of which each does a call when it is given one."""

    parts: list[Any]
    results: dict[int, Any] = field(default_factory=dict)

    @property
    def numbers(self) -> range:
        return range(len(self.parts))

    def start(self, workers: Collection[int], method: str, arguments: tuple[Any, ...]) -> None:
        for worker in workers:
            self.results[worker] = attrgetter(method)(self.parts[worker])(*arguments)

    def tell(self, worker: int, method: str, arguments: tuple[Any, ...]) -> None:
        getattr(self.parts[worker], method)(*arguments)

    def keep(self, worker: int, method: str, arguments: tuple[Any, ...]) -> Any:
        # another process would have its own copy
        return [array.copy() for array in getattr(self.parts[worker], method)(*arguments)]

    def wait(self, busy: Collection[int]) -> int:
        return min(busy)

    def result(self, worker: int) -> Any:
        return self.results.pop(worker)

    def replace(self, worker: int) -> None:
        raise AssertionError("nobody is lost here")

    def end(self) -> None:
        pass


@contextmanager
def cluster_here(config: Config, inputs: RunInputs, checkpoint: Checkpoint | None) -> Iterator[Backend]:
    """A `BackendFactory`: one trainer and the samplers."""
    trainer = TrainerWorker(config, inputs.run_size, checkpoint)
    count, done = config.cluster.num_producers, 0 if checkpoint is None else checkpoint.state.step
    images = inputs.run_size.images
    samplers = WorkerGroup(Here([sampler_of(config, images) for _ in range(count)]), "sampler")
    weights = StoredWeights(WorkerGroup(Here([trainer]), "trainer"), samplers, done=done)
    task_sampler = make_task_sampler(config, inputs, checkpoint)
    backend = WorkerBackend(config, inputs, task_sampler, weights=weights, samplers=samplers, done=done)
    try:
        yield backend
    finally:
        backend.close()


def made_by(make_backend: BackendFactory, place: Path, **more: object) -> RunDir:
    """The run of `options_in` with some options more, whose backend is `make_backend`."""
    config = build_config({**options_in(place), **more})
    request = RunRequest(config=config, output_dir=place / "run")
    assert train(request, prepare(config), console=Console(file=io.StringIO()), make_backend=make_backend)
    return RunDir(place / "run")


def sampler_of(config: Config, images: Path | None = None) -> SamplerWorker:
    """A sampler's process, as a cluster makes it; `images` is the folder of a run's images, if it has any."""
    return SamplerWorker(config, load_copy(config, RunObjects(), None, is_apart=True, images=images))
