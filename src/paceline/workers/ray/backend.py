"""The cluster's backend: one thread of the driver samples, the other trains."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import override

from paceline.checkpoints.finding import Checkpoint, TrainingState
from paceline.config.sections import Config
from paceline.runtime.timeline import Span
from paceline.training.backend import Backend
from paceline.training.footprint import Footprint
from paceline.training.learner.stats import UpdateStats
from paceline.training.rollout_journal import Journal
from paceline.training.rollouts.sharing import SharedEngine, SharedRoundSampler
from paceline.training.sampled_step import NO_TRANSFER, SampledStep, WeightTransfer
from paceline.training.setup.evaluators import EvalResult, Evaluator
from paceline.training.setup.run_inputs import RunInputs
from paceline.training.setup.samplers import training_sampler
from paceline.training.task_sampler import TaskSampler, prompts_of_step
from paceline.types import RolloutGroup
from paceline.workers.ray.consumers import Consumers, Weights
from paceline.workers.ray.producer_thread import ProducerThread, SamplerWeights
from paceline.workers.ray.schedule import StalenessSchedule
from paceline.workers.ray.simulation import simulate
from paceline.workers.ray.timings import step_seconds
from paceline.workers.ray.worker_group import WorkerGroup

DRIVER = "driver"
"""Timeline row of the process that the workers serve."""


@dataclass(kw_only=True, slots=True)
class Versions(SamplerWeights):
    """Weight versions that samplers may still load, and the load itself."""

    group: WorkerGroup
    kept: dict[int, Weights] = field(default_factory=dict)
    _transfer: WeightTransfer = field(init=False, default=NO_TRANSFER)

    @override
    def load(self, version: int) -> None:
        started = time.perf_counter()
        weights = self.kept[version]
        self.group.bring_to("load", weights.manifest, *weights.buckets)
        before, seconds = self._transfer, time.perf_counter() - started
        self._transfer = WeightTransfer(
            seconds=before.seconds + seconds, nbytes=before.nbytes + weights.manifest.nbytes
        )

    def take_transfer(self) -> WeightTransfer:
        """Time and bytes of all loads since the last call."""
        taken, self._transfer = self._transfer, NO_TRANSFER
        return taken

    @override
    def forget(self, older_than: int) -> None:
        for version in [version for version in list(self.kept) if version < older_than]:  # another thread adds to it
            del self.kept[version]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Begun:
    """State that exists once the journal says which steps are on disk."""

    journal: Journal
    producer_thread: ProducerThread


class ClusterBackend(Backend):
    """A `Backend` whose samplers work ahead by up to `max_staleness` steps."""

    def __init__(
        self,
        config: Config,
        inputs: RunInputs,
        task_sampler: TaskSampler,
        *,
        consumers: Consumers,
        group: WorkerGroup,
        done: int,
    ) -> None:
        """`done` counts the steps that the trainers' weights have seen."""
        self._consumers, self._group, self._recorder = consumers, group, group.recorder
        self._newest = consumers.weights(done)
        self._versions = Versions(group=group, kept={done: self._newest})
        self._config, self._task_sampler, self._done, self._last = config, task_sampler, done, inputs.total_steps
        self._progress = inputs.progress
        self._producer = training_sampler(config, SharedRoundSampler(workers=group))
        self._max_staleness = config.cluster.max_staleness
        self._continues = config.cluster.on_new_weights == "continue"
        self._begun: _Begun | None = None

    @override
    def begin(self, journal: Journal) -> None:
        """Start the producer thread behind the journal's steps."""
        self._task_sampler.position = journal.position
        schedule = StalenessSchedule(
            done=self._done,
            last=self._last,
            max_staleness=self._max_staleness,
            again=journal.again,
            takes_newest=self._continues,
        )

        def produce(number: int) -> SampledStep:
            found = self._make(number)
            journal.commit(number, found)
            return found

        self._begun = _Begun(journal=journal, producer_thread=ProducerThread(schedule, self._versions, produce))

    @property
    @override
    def policy_version(self) -> int:
        return self._newest.manifest.policy_version

    @override
    def sample(self, number: int) -> SampledStep:
        """Take the step from the producer thread, which has sampled and committed it."""
        with self._recorder.span(DRIVER, f"wait for the rollouts of {number}"):
            found: SampledStep = self._work.producer_thread.take(number)
        return found

    @override
    def update(self, number: int, groups: Sequence[RolloutGroup]) -> tuple[UpdateStats, float]:
        self._progress.phase("update", 0, 1)
        with self._recorder.span(DRIVER, f"update {number}"):
            found, self._newest = self._consumers.update(number, groups, like=self._newest.manifest)
        self._progress.phase("update", 1, 1)
        self._versions.kept[number] = self._newest
        self._work.producer_thread.publish(number)
        if self._continues:
            # after it is published: the next step is then begun with these at least, and no producer goes back
            self._group.tell("offer", self._newest.manifest, *self._newest.buckets)
        return found.stats, found.learning_rate

    @override
    def evaluate(self, evaluator: Evaluator, *, step: int) -> EvalResult:
        engine = SharedEngine(workers=self._group)
        with self._recorder.span(DRIVER, f"evaluate {step}"):
            found: EvalResult = self._work.producer_thread.measure(lambda: evaluator.evaluate(engine, step=step))
        return found

    @override
    def save(self, root: Path, state: TrainingState, protected: Collection[Path]) -> tuple[str, ...]:
        """Have the trainers write a checkpoint below `root`, which must be their path too.

        A run that goes on from it has none of the weights before it, so what is sampled from those is committed first.
        """
        with self._recorder.span(DRIVER, f"wait for what is sampled from weights before {state.step}"):
            self._work.producer_thread.reach(min(state.step + self._max_staleness, self._last))
            self._work.journal.wait()
        with self._recorder.span(DRIVER, f"checkpoint {state.step}"):
            found: tuple[str, ...] = self._consumers.ask_all("save", root.absolute(), state, protected)
        return found

    @override
    def saved(self, *, wait: bool) -> Checkpoint | None:
        """Ask the first trainer, which commits for all."""
        found: Checkpoint | None = self._consumers.ask("saved", wait)
        return found

    @override
    def footprint(self) -> Footprint:
        found: Footprint = self._consumers.ask_all("footprint")
        return found

    @override
    def export(self, folder: Path) -> None:
        self._consumers.ask_all("export", folder.absolute())

    @override
    def news(self) -> list[str]:
        taken, self._group.news = self._group.news, []
        return taken

    @override
    def foresee(self, steps: Sequence[Mapping[str, Any]]) -> float | None:
        return simulate([step_seconds(one) for one in steps], max_staleness=self._max_staleness).recorded[-1]

    @override
    def spans(self) -> list[Span]:
        return self._recorder.take()

    def close(self) -> None:
        """Stop sampling and training, and end all processes."""
        if self._begun is not None:
            self._begun.producer_thread.close()
        self._group.workers.end()
        self._consumers.end()
        if self._begun is not None:
            self._begun.producer_thread.join()

    @property
    def _work(self) -> _Begun:
        assert self._begun is not None  # see `Backend.begin`
        return self._begun

    def _make(self, number: int) -> SampledStep:
        started = time.perf_counter()
        count = prompts_of_step(number, self._config.loop, num_tasks=len(self._task_sampler.tasks))
        batch = self._producer.sample(self._task_sampler.take, count)
        transfer = self._versions.take_transfer()
        seconds = transfer.seconds + time.perf_counter() - started
        return SampledStep(batch=batch, position=self._task_sampler.position, seconds=seconds, transfer=transfer)
