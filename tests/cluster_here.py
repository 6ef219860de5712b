"""A cluster's backend in this process: its schedule, threads and weight sync, without Ray and its seconds."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.checkpoints.finding import Checkpoint
from paceline.config.sections import Config
from paceline.training.backend import ReadyBackend, make_task_sampler
from paceline.training.setup.run_inputs import RunInputs
from paceline.workers.ray.backend import ClusterBackend
from paceline.workers.ray.consumers import Consumers
from paceline.workers.ray.consuming import ConsumerContext, ConsumingProcess
from paceline.workers.ray.producing import ProducingProcess
from paceline.workers.ray.worker_group import WorkerGroup


@dataclass
class Here:
    """`Workers` of which each does a call when it is given one."""

    parts: list[Any]
    answers: dict[int, Any] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.parts)

    def start(self, worker: int, method: str, arguments: tuple[Any, ...]) -> None:
        self.answers[worker] = getattr(self.parts[worker], method)(*arguments)

    def tell(self, worker: int, method: str, arguments: tuple[Any, ...]) -> None:
        getattr(self.parts[worker], method)(*arguments)

    def keep(self, worker: int, method: str, arguments: tuple[Any, ...]) -> Any:
        # another process would have its own copy
        return [array.copy() for array in getattr(self.parts[worker], method)(*arguments)]

    def wait(self, busy: Collection[int]) -> int:
        return min(busy)

    def answer(self, worker: int) -> Any:
        return self.answers.pop(worker)

    def replace(self, worker: int) -> None:
        raise AssertionError("nobody is lost here")

    def end(self) -> None:
        pass


@contextmanager
def cluster_here(
    config: Config,
    inputs: RunInputs,
    checkpoint: Checkpoint | None,
    *,
    consumer: Callable[[ConsumingProcess], Any] = lambda consumer: consumer,
) -> Iterator[ReadyBackend]:
    """A `BackendFactory`: one consumer, which may be wrapped into another, and the producers."""
    place, path = Path.cwd(), None if checkpoint is None else checkpoint.path
    trains = ConsumingProcess(config, place, ConsumerContext(rank=0, size=1, meeting=None), inputs.run_size, path)
    backend = ClusterBackend(
        config,
        inputs,
        make_task_sampler(config, inputs, checkpoint),
        consumers=Consumers(Here([consumer(trains)])),
        group=WorkerGroup(Here([ProducingProcess(config, place) for _ in range(config.cluster.num_producers)])),
        done=0 if checkpoint is None else checkpoint.state.step,
    )
    try:
        yield ReadyBackend(backend=backend, sentences=())
    finally:
        backend.close()
