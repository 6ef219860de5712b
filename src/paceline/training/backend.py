"""The sampler and the trainer as the loop sees them, and the backend that has both in this process."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from typing_extensions import override

from paceline.checkpoints.finding import Checkpoint, TrainingState
from paceline.config.sections import Config
from paceline.engines import TrainedEngine
from paceline.episodes.conversations import Drawn
from paceline.models.loading import restore_weights
from paceline.runtime.activity import ACTIVITY, RUN
from paceline.training.assembly import make_engine
from paceline.training.evaluation import EvalResult, Evaluator
from paceline.training.learner.stats import UpdateStats
from paceline.training.memory import Footprint
from paceline.training.records import engine_sentences, trainer_sentences
from paceline.training.rollout_journal import Journal
from paceline.training.rollouts.rounds import NO_TRANSFER, RolloutBatch, WeightTransfer
from paceline.training.rollouts.sampler import Sampler, TaskSampler, prompts_of_step
from paceline.training.setup.inputs import RunInputs
from paceline.training.setup.samplers import training_rounds, training_sampler
from paceline.training.trainer import Trainer, make_trainer
from paceline.types import RolloutGroup


class Backend(Protocol):
    """A sampler and a trainer, wherever they run. Steps come in order: first the rollouts of one, then its update."""

    sentences: tuple[str, ...] = ()
    """Sentences for the user before the first step."""

    @property
    def policy_version(self) -> int:
        """Updates that the weights have seen."""

    def begin(self, journal: Journal) -> None:
        """Continue after the steps whose rollouts `journal` has; called once, before anything is sampled."""

    def sample(self, number: int) -> RolloutBatch:
        """Sample, grade and compare the rollouts of step 1, 2, ..., in the data order, and begin to commit them."""

    def update(self, number: int, groups: Sequence[RolloutGroup]) -> tuple[UpdateStats, float]:
        """Run all updates of a step; returns their statistics and the last learning rate."""

    def evaluate(self, evaluator: Evaluator, *, step: int) -> EvalResult:
        """Measure a held-out set with the current weights."""

    def save(self, root: Path, state: TrainingState, protected: Collection[int]) -> tuple[str, ...]:
        """Begin a checkpoint below `root`; those of the steps `protected` are never deleted.

        It may be written while steps follow. The one before it must have been asked for by `saved`. Returns what a
        person should know of it.

        Raises:
            StorageError: it cannot be written.
        """

    def saved(self, *, wait: bool) -> Checkpoint | None:
        """Return the checkpoint that was begun, once it is on disk; None while it is not, without `wait`.

        Raises:
            StorageError: it cannot be written, or is not in time.
        """

    def footprint(self) -> Footprint:
        """Return the disk space of a checkpoint and of the final model."""

    def export(self, folder: Path) -> None:
        """Write the trained model as transformers or peft loads it."""

    def news(self) -> list[str]:
        """Return sentences for the user on what happened since the last call."""
        return []

    def image_clock(self) -> dict[str, float]:
        """Return what images took since the last call, by the names of a step's clock; nothing without images."""
        return {}

    def predict(self, steps: Sequence[Mapping[str, Any]]) -> float | None:
        """Predict the seconds of steps from their clocks and the order of the work; None if nothing overlaps."""
        return None


BackendFactory = Callable[[Config, RunInputs, Checkpoint | None], AbstractContextManager[Backend]]
"""Builds a backend, from a checkpoint if there is one, and closes it when the run ends."""


@dataclass(kw_only=True, slots=True)
class OneProcess(Backend):
    """A `Backend` whose engine and learner share weights: an update is seen by the engine at once."""

    config: Config
    trainer: Trainer
    engine: TrainedEngine
    sampler: Sampler
    task_sampler: TaskSampler
    sentences: tuple[str, ...] = ()
    _journal: Journal = field(init=False)
    _image_counts: dict[str, float] = field(default_factory=dict, init=False)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore a checkpoint in a backend that was built without it."""
        self.trainer.restore(checkpoint)
        self.engine.take_weights(self.policy_version)

    @property
    @override
    def policy_version(self) -> int:
        return self.trainer.policy_version

    @override
    def begin(self, journal: Journal) -> None:
        self._journal, self.task_sampler.position = journal, journal.position

    @override
    def sample(self, number: int) -> RolloutBatch:
        started = ACTIVITY.clock()
        batch = sample_step(number, self.config, self.sampler, self.task_sampler, self._journal)
        phases = (f"generate {number}", batch.generate_seconds), (f"reward {number}", batch.reward_seconds)
        ACTIVITY.phases(RUN, started, phases)
        return batch

    @override
    def update(self, number: int, groups: Sequence[RolloutGroup]) -> tuple[UpdateStats, float]:
        self.engine.rest()
        update = self.trainer.update(number, groups)
        with ACTIVITY.span(RUN, f"publish {number}"):
            self.engine.take_weights(self.policy_version)
        return update

    @override
    def evaluate(self, evaluator: Evaluator, *, step: int) -> EvalResult:
        return evaluator.evaluate(self.engine, step=step)

    @override
    def save(self, root: Path, state: TrainingState, protected: Collection[int]) -> tuple[str, ...]:
        return self.trainer.save(root, state, protected)

    @override
    def saved(self, *, wait: bool) -> Checkpoint | None:
        return self.trainer.saved(wait)

    @override
    def footprint(self) -> Footprint:
        return self.trainer.footprint()

    @override
    def image_clock(self) -> dict[str, float]:
        vision, before = self.trainer.policy.vision, self._image_counts
        if vision is None:
            return {}
        self._image_counts = dict(vision.counts)
        taken = {name: number - before.get(name, 0) for name, number in vision.counts.items()}
        asked = taken["encoded"] + taken["reused"]
        return {"vision": taken["seconds"], "image_reuse": taken["reused"] / asked if asked else 0.0}

    def measure(self, groups: Sequence[RolloutGroup]) -> UpdateStats:
        """Report what an update would find in these groups, without an update."""
        return self.trainer.measure(groups)

    def load_weights(self, model: Path) -> None:
        """Load the weights of a checkpoint's `model` directory."""
        restore_weights(self.trainer.policy, model)
        self.engine.take_weights(self.policy_version)

    @override
    def export(self, folder: Path) -> None:
        self.trainer.export(folder)


def sample_step(
    number: int,
    config: Config,
    sampler: Sampler,
    task_sampler: TaskSampler,
    journal: Journal,
    *,
    transfer: WeightTransfer = NO_TRANSFER,
) -> RolloutBatch:
    """Sample, score and compare the rollouts of a step after a `transfer` of weights, and begin to commit them."""
    count = prompts_of_step(number, config.loop, num_tasks=len(task_sampler.tasks))

    def take(number_of_tasks: int) -> Drawn:
        drawn = task_sampler.take(number_of_tasks)
        journal.keep_images(task for task, _ in drawn)
        return drawn

    started = ACTIVITY.clock()
    batch = sampler.sample(take, count)
    seconds = transfer.seconds + ACTIVITY.clock() - started
    batch = replace(batch, position=task_sampler.position, seconds=seconds, transfer=transfer)
    journal.commit(number, batch)
    return batch


def one_process(config: Config, inputs: RunInputs, *, checkpoint: Checkpoint | None = None) -> OneProcess:
    """Build sampler, engine and trainer around one set of weights, which `make_trainer` reads."""
    objects = replace(inputs.objects, policy_loss=inputs.policy_loss)
    trainer = make_trainer(
        config, inputs.tokenizer, inputs.run_size, objects, checkpoint=checkpoint, pictures=inputs.pictures
    )
    engine = make_engine(config, trainer.policy, inputs.tokenizer)
    if checkpoint is not None:
        engine.take_weights(trainer.policy_version)
    return OneProcess(
        config=config,
        trainer=trainer,
        engine=engine,
        sampler=training_sampler(
            config,
            training_rounds(config, engine, inputs.functions, inputs.conversations, inputs.objects.completer),
            inputs.advantage,
            needs_reward=inputs.objects.needs_reward,
        ),
        task_sampler=make_task_sampler(config, inputs, checkpoint),
        sentences=(*engine_sentences(engine), *trainer_sentences(trainer)),
    )


@contextmanager
def in_this_process(config: Config, inputs: RunInputs, checkpoint: Checkpoint | None) -> Iterator[Backend]:
    """The `BackendFactory` of a run in one process."""
    if inputs.objects.model is None:
        yield one_process(config, inputs, checkpoint=checkpoint)
        return
    backend = one_process(config, inputs)
    if checkpoint is not None:
        backend.restore(checkpoint)
    yield backend


def make_task_sampler(config: Config, inputs: RunInputs, checkpoint: Checkpoint | None) -> TaskSampler:
    """The data order from where the checkpoint left it."""
    return TaskSampler(
        tasks=inputs.tasks.tasks,
        seed=config.loop.seed,
        shuffle=config.data.shuffle,
        position=0 if checkpoint is None else checkpoint.state.position,
    )
