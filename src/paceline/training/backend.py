"""The sampler and the trainer as the loop sees them, and the backend that has both in this process."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from typing_extensions import override

from paceline.checkpoints.finding import Checkpoint, TrainingState
from paceline.config.sections import Config
from paceline.runtime.timeline import Recorder, Span
from paceline.training.assembly import Parts, assemble
from paceline.training.footprint import Footprint
from paceline.training.learner.stats import UpdateStats
from paceline.training.records import engine_sentences, trainer_sentences
from paceline.training.rollout_journal import Journal
from paceline.training.sampled_step import SampledStep
from paceline.training.setup.evaluators import EvalResult, Evaluator
from paceline.training.setup.run_inputs import RunInputs
from paceline.training.task_sampler import TaskSampler, prompts_of_step
from paceline.types import RolloutGroup

HERE = "this process"
"""The row of a timeline that has no other."""


class Backend(Protocol):
    """A sampler and a trainer, wherever they run. Steps come in order: first the rollouts of one, then its update."""

    @property
    def policy_version(self) -> int:
        """Updates that the weights have seen."""

    def begin(self, journal: Journal) -> None:
        """Go on behind the steps whose rollouts `journal` has; called once, before anything is sampled."""

    def sample(self, number: int) -> SampledStep:
        """Sample, grade and compare the rollouts of step 1, 2, ..., in the data order, and begin to commit them."""

    def update(self, number: int, groups: Sequence[RolloutGroup]) -> tuple[UpdateStats, float]:
        """All updates of a step, and the learning rate of the last of them."""

    def evaluate(self, evaluator: Evaluator, *, step: int) -> EvalResult:
        """A held-out set with the weights as they are."""

    def save(self, root: Path, state: TrainingState, protected: Collection[Path]) -> tuple[str, ...]:
        """Begin a checkpoint of this moment below `root`; those in `protected` stay, however many come after them.

        It may be written while steps follow. The one before it must have been asked for by `saved`.

        Returns:
            What a person should know of it.

        Raises:
            StorageError: it cannot be written.
        """

    def saved(self, *, wait: bool) -> Checkpoint | None:
        """The checkpoint that was begun, once it is on disk; None: it is not yet, and nobody wished to `wait`.

        Raises:
            StorageError: it cannot be written, or is not in time.
        """

    def footprint(self) -> Footprint:
        """What a checkpoint and the final model take on a disk."""

    def export(self, folder: Path) -> None:
        """The trained model, as transformers or peft loads it."""

    def news(self) -> list[str]:
        """What happened since this was last asked that a person should know, a sentence each."""

    def foresee(self, steps: Sequence[Mapping[str, Any]]) -> float | None:
        """Seconds that steps with these records should take, by the phases in their clocks and the order of the work.

        None where one thing simply comes after the other.
        """

    def spans(self) -> list[Span]:
        """What was done where since this was last asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadyBackend:
    """A backend that is ready, and sentences on it for a person."""

    backend: Backend
    sentences: tuple[str, ...]


BackendFactory = Callable[[Config, RunInputs, Checkpoint | None], AbstractContextManager[ReadyBackend]]
"""Builds a backend, from the checkpoint where there is one, and takes it down when the run is over."""


@dataclass(kw_only=True, slots=True)
class OneProcess(Backend):
    """A `Backend` whose engine and learner share weights: an update is seen by the engine at once."""

    config: Config
    parts: Parts
    task_sampler: TaskSampler
    recorder: Recorder = field(default_factory=Recorder)
    _journal: Journal = field(init=False)

    @property
    @override
    def policy_version(self) -> int:
        return self.parts.trainer.policy_version

    @override
    def begin(self, journal: Journal) -> None:
        self._journal, self.task_sampler.position = journal, journal.position

    @override
    def sample(self, number: int) -> SampledStep:
        count = prompts_of_step(number, self.config.loop, num_tasks=len(self.task_sampler.tasks))
        started = self.recorder.clock()
        batch = self.parts.sampler.sample(self.task_sampler.take, count)
        phases = (f"generate {number}", batch.generate_seconds), (f"reward {number}", batch.reward_seconds)
        self.recorder.phases(HERE, started, phases)
        seconds = self.recorder.clock() - started
        sampled = SampledStep(batch=batch, position=self.task_sampler.position, seconds=seconds)
        self._journal.commit(number, sampled)
        return sampled

    @override
    def update(self, number: int, groups: Sequence[RolloutGroup]) -> tuple[UpdateStats, float]:
        self.parts.engine.rest()
        with self.recorder.span(HERE, f"update {number}"):
            found = self.parts.trainer.update(number, groups)
        with self.recorder.span(HERE, f"publish {number}"):
            self.parts.engine.take_weights(self.policy_version)
        return found

    @override
    def evaluate(self, evaluator: Evaluator, *, step: int) -> EvalResult:
        with self.recorder.span(HERE, f"evaluate {step}"):
            return evaluator.evaluate(self.parts.engine, step=step)

    @override
    def save(self, root: Path, state: TrainingState, protected: Collection[Path]) -> tuple[str, ...]:
        with self.recorder.span(HERE, f"checkpoint {state.step}"):
            return self.parts.trainer.save(root, state, protected)

    @override
    def saved(self, *, wait: bool) -> Checkpoint | None:
        return self.parts.trainer.saved(wait=wait)

    @override
    def footprint(self) -> Footprint:
        return self.parts.trainer.footprint()

    @override
    def export(self, folder: Path) -> None:
        self.parts.trainer.export(folder)

    @override
    def news(self) -> list[str]:
        return []

    @override
    def foresee(self, steps: Sequence[Mapping[str, Any]]) -> float | None:
        return None

    @override
    def spans(self) -> list[Span]:
        return self.recorder.take()


@contextmanager
def in_this_process(config: Config, inputs: RunInputs, checkpoint: Checkpoint | None) -> Iterator[ReadyBackend]:
    """The `BackendFactory` of a run in one process."""
    parts = assemble(config, inputs, checkpoint=checkpoint)
    backend = OneProcess(config=config, parts=parts, task_sampler=make_task_sampler(config, inputs, checkpoint))
    yield ReadyBackend(backend=backend, sentences=(*engine_sentences(parts.engine), *trainer_sentences(parts.trainer)))


def make_task_sampler(config: Config, inputs: RunInputs, checkpoint: Checkpoint | None) -> TaskSampler:
    """The data order from where the checkpoint left it."""
    return TaskSampler(
        tasks=inputs.tasks.tasks,
        seed=config.loop.seed,
        shuffle=config.data.shuffle,
        position=0 if checkpoint is None else checkpoint.state.position,
    )
