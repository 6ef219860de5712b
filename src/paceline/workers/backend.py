"""The backend of a run whose samplers and trainers are workers, on a cluster or on the ranks of a launch."""

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from typing_extensions import override

from paceline.checkpoints.finding import Checkpoint, TrainingState
from paceline.config.layout import ClusterConfig
from paceline.config.sections import Config
from paceline.engines import Engine
from paceline.runtime.activity import ACTIVITY, RUN
from paceline.training.backend import Backend, sample_step
from paceline.training.evaluation import EvalResult, Evaluator
from paceline.training.learner.stats import UpdateStats
from paceline.training.memory import Footprint
from paceline.training.rollout_journal import Journal
from paceline.training.rollouts.rounds import NO_TRANSFER, RolloutBatch, WeightTransfer
from paceline.training.rollouts.sampler import TaskSampler
from paceline.training.setup.inputs import RunInputs
from paceline.training.setup.samplers import training_sampler
from paceline.types import RolloutGroup
from paceline.workers.group import SharedEngine, SharedRoundSampler, WorkerGroup
from paceline.workers.schedule import InTurn, SamplerThread, SamplerWeights, StalenessSchedule, simulate, step_seconds
from paceline.workers.weight_sync import Manifest, Renewed, bytes_of, check_copies
from paceline.workers.worker import COLLECTIVE_SECONDS, TrainerUpdate, TrainerWorker


class TrainedWeights:
    """The trainers' weights in versions, one after each step, and how samplers come to them."""

    trains_elsewhere = False
    """True if no trainer is in this process, where its learner would show its progress."""
    in_turn = False
    """True if the same ranks sample and train in turn: nothing is sampled ahead."""

    def __init__(self, trainers: WorkerGroup, *, policy_version: int) -> None:
        """`policy_version` counts the updates that the weights have seen."""
        self.trainers, self.policy_version = trainers, policy_version
        self.transfer = NO_TRANSFER
        """Cost of all loads until it is taken."""

    def update(self, number: int, groups: Sequence[RolloutGroup]) -> TrainerUpdate:
        """Run all updates of a step, whose weights can be loaded as version `number` then.

        Raises:
            ProcessLost: a trainer is gone, or silent.
            TrainingError: trainers' copies of the same weights differ; or an update raised it.
        """
        updates: list[TrainerUpdate] = self.trainers.call("update", number, groups)
        self.policy_version = updates[0].policy_version
        held = [update.held for update in updates]
        check_copies(held, policy_version=self.policy_version, who=self.trainers.who)
        self.keep(number)
        return updates[0]

    def keep(self, version: int) -> None:
        """Keep the trainers' weights as this version, while a sampler may load them."""

    def renew(self) -> None:
        """Bring samplers to the newest weights outside a run, where no schedule loads them."""

    def go_to(self, method: str, path: Path, policy_version: int) -> None:
        """Have all ranks read weights from files, with which trainers and samplers are at this version."""
        raise TypeError("these trainers read their weights when they are built")


class StoredWeights(TrainedWeights, SamplerWeights):
    """Versions that samplers load as references to Ray's store."""

    trains_elsewhere = True

    def __init__(self, trainers: WorkerGroup, samplers: WorkerGroup, *, done: int) -> None:
        """`done` counts the steps that the trainers' weights have seen."""
        super().__init__(trainers, policy_version=0)
        self._samplers = samplers
        self.kept = dict[int, tuple[Manifest, Sequence[Any]]]()
        self._newest: Manifest
        self.keep(done)

    @override
    def keep(self, version: int) -> None:
        manifest: Manifest = self.trainers.call("manifest", version)[0]
        # calls are done in order: these read what is there before the next update changes it
        self._add(manifest, [self.trainers.keep("bucket", names) for names in manifest.buckets])

    def _add(self, manifest: Manifest, buckets: Sequence[Any]) -> None:
        self.kept[manifest.version], self._newest = (manifest, buckets), manifest
        self.policy_version = manifest.policy_version

    @override
    def load(self, version: int) -> None:
        started = time.perf_counter()
        manifest, buckets = self.kept[version]
        self.send(manifest, buckets)
        self.transfer += WeightTransfer(seconds=time.perf_counter() - started, nbytes=manifest.nbytes)

    def send(self, manifest: Manifest, buckets: Sequence[Any]) -> None:
        """Bring all samplers to a version."""
        self._samplers.bring_to("load", manifest, *buckets)

    @override
    def offer(self) -> None:
        manifest, buckets = self.kept[self._newest.version]
        self._samplers.tell("offer", manifest, *buckets)

    @override
    def forget(self, older_than: int) -> None:
        _drop(self.kept, older_than)


def _drop(kept: dict[int, Any], older_than: int) -> None:
    """Drop old versions; another thread may add newer ones."""
    for version in [version for version in list(kept) if version < older_than]:
        del kept[version]


class BroadcastWeights(StoredWeights):
    """Versions that the first rank keeps in its memory, and broadcasts to the ranks that only sample."""

    trains_elsewhere = False

    def __init__(
        self, trainers: WorkerGroup, samplers: WorkerGroup, senders: WorkerGroup, first: TrainerWorker, *, done: int
    ) -> None:
        """`senders` are the first rank and those that only sample; `first` keeps the weights on the first rank."""
        self._senders, self._first = senders, first
        super().__init__(trainers, samplers, done=done)

    @override
    def keep(self, version: int) -> None:
        self._add(self.trainers.call("hold", version)[0], ())

    @override
    def send(self, manifest: Manifest, buckets: Sequence[Any]) -> None:
        self._senders.call("load", manifest)

    @override
    def offer(self) -> None:
        manifest, weights = self._newest, self._first.kept[self._newest.version]
        buckets = ([bytes_of(weights[name]) for name in names] for names in manifest.buckets)
        self._samplers.tell("offer", manifest, *buckets)

    @override
    def forget(self, older_than: int) -> None:
        super().forget(older_than)
        _drop(self._first.kept, older_than)


class RankWeights(TrainedWeights):
    """The newest version on ranks that train and sample in turn, as trained or as a copy that is renewed."""

    in_turn = True

    def __init__(self, ranks: WorkerGroup, trainers: WorkerGroup, *, policy_version: int) -> None:
        """`ranks` are all of them, `policy_version` is that of their weights."""
        super().__init__(trainers, policy_version=policy_version)
        self._ranks, self._renewed = ranks, policy_version

    @override
    def go_to(self, method: str, path: Path, policy_version: int) -> None:
        self._ranks.call(method, path, policy_version)
        self.policy_version = self._renewed = policy_version

    @override
    def renew(self) -> None:
        """Bring the ranks that sample to the trained weights, if theirs are older."""
        if self._renewed == self.policy_version:
            return
        reports: list[Renewed] = self._ranks.call("renew", self.policy_version)
        check_copies([report.held for report in reports], policy_version=self.policy_version, who=self._ranks.who)
        self._renewed = self.policy_version
        self.transfer += reports[0].transfer


class WorkerBackend(Backend):
    """A `Backend` whose samplers work ahead by up to `max_staleness` steps, or in turn with the trainers."""

    def __init__(
        self,
        config: Config,
        inputs: RunInputs,
        task_sampler: TaskSampler,
        *,
        weights: TrainedWeights,
        samplers: WorkerGroup,
        done: int,
    ) -> None:
        """`done` counts the steps that the trainers' weights have seen."""
        self._config, self._task_sampler, self._done, self._last = config, task_sampler, done, inputs.total_steps
        self._weights, self._trainers, self._samplers = weights, weights.trainers, samplers
        self._sampler = training_sampler(
            config, SharedRoundSampler(workers=samplers), inputs.advantage, needs_reward=inputs.objects.needs_reward
        )
        self._journal: Journal
        self._order: SamplerThread | InTurn | None = None

    @override
    def begin(self, journal: Journal) -> None:
        """Go on behind the journal's steps; samplers that work ahead start at once."""
        self._journal, self._task_sampler.position = journal, journal.position
        if self._weights.in_turn:
            self._order = InTurn(self._weights.renew, self._produce)
            return
        schedule = StalenessSchedule(
            done=self._done,
            last=self._last,
            max_staleness=self._config.cluster.max_staleness,
            again=journal.again,
            takes_newest=self._config.cluster.on_new_weights == "continue",
        )
        self._order = SamplerThread(schedule, cast(SamplerWeights, self._weights), self._produce)

    @property
    @override
    def policy_version(self) -> int:
        return self._weights.policy_version

    @override
    def sample(self, number: int) -> RolloutBatch:
        return cast(RolloutBatch, self._begun.take(number))

    @override
    def update(self, number: int, groups: Sequence[RolloutGroup]) -> tuple[UpdateStats, float]:
        # on ranks the first one trains itself, and its learner says more
        if self._weights.trains_elsewhere:
            ACTIVITY.advance("update", 0, 1)
        update = self._weights.update(number, groups)
        if self._weights.trains_elsewhere:
            ACTIVITY.advance("update", 1, 1)
        self._begun.publish(number)
        return update.stats, update.learning_rate

    @override
    def evaluate(self, evaluator: Evaluator, *, step: int) -> EvalResult:
        engine = SharedEngine(workers=self._samplers)
        return cast(EvalResult, self._begun.measure(lambda: evaluator.evaluate(engine, step=step)))

    @override
    def save(self, root: Path, state: TrainingState, protected: Collection[int]) -> tuple[str, ...]:
        """Have the trainers write a checkpoint below `root`, which must be their path too.

        A run that goes on from it has none of the weights before it, so what is sampled from those is committed first.
        """
        with ACTIVITY.span(RUN, f"wait for what is sampled from weights before {state.step}"):
            self._begun.reach(min(state.step + self._config.cluster.max_staleness, self._last))
            self._journal.wait()
        return cast(
            tuple[str, ...], self._trainers.call("trainer.save", root.absolute(), state, frozenset(protected))[0]
        )

    @override
    def saved(self, *, wait: bool) -> Checkpoint | None:
        """The first trainer commits for all, so no other one is asked: on ranks this holds after an error too."""
        return cast(Checkpoint | None, self._trainers.ask("trainer.saved", wait))

    @override
    def footprint(self) -> Footprint:
        return cast(Footprint, self._trainers.call("trainer.footprint")[0])

    @override
    def export(self, folder: Path) -> None:
        self._trainers.call("trainer.export", folder.absolute())

    @override
    def news(self) -> list[str]:
        taken, self._samplers.news = self._samplers.news, []
        return taken

    @override
    def predict(self, steps: Sequence[Mapping[str, Any]]) -> float | None:
        if self._weights.in_turn:
            return None
        return simulate([step_seconds(record) for record in steps], max_staleness=self._config.cluster.max_staleness)[
            -1
        ]

    @property
    def engine(self) -> Engine:
        """Engine over all samplers with the newest weights, also outside a run."""
        self._weights.renew()
        return SharedEngine(workers=self._samplers)

    def measure(self, groups: Sequence[RolloutGroup]) -> UpdateStats:
        """Report what an update would find in these groups, without an update."""
        return cast(UpdateStats, self._trainers.call("trainer.measure", groups)[0])

    def restore(self, checkpoint: Checkpoint) -> None:
        """Put a checkpoint into ranks that were built without it."""
        self._weights.go_to("restore", checkpoint.path.absolute(), checkpoint.state.policy_version)
        self._done = checkpoint.state.step

    def load_weights(self, model: Path) -> None:
        """Put the weights of a checkpoint's `model` directory in place of the trained ones."""
        self._weights.go_to("load_weights", model.absolute(), self.policy_version)

    def stop(self) -> None:
        """Begin to sample nothing more."""
        if self._order is not None:
            self._order.close()

    def close(self) -> None:
        """Stop sampling and training, and end all processes that do not end by themselves."""
        self.stop()
        self._samplers.workers.end()
        self._trainers.workers.end()
        if self._order is not None:
            self._order.join(COLLECTIVE_SECONDS)

    @property
    def _begun(self) -> SamplerThread | InTurn:
        assert self._order is not None  # see `Backend.begin`
        return self._order

    def _produce(self, number: int) -> RolloutBatch:
        transfer, self._weights.transfer = self._weights.transfer, NO_TRANSFER
        return sample_step(number, self._config, self._sampler, self._task_sampler, self._journal, transfer=transfer)


def schedule_sentence(options: ClusterConfig) -> str:
    """Sentence for the user on how far samplers work ahead."""
    ahead = options.max_staleness
    if not ahead:
        return "sampling and training take turns"
    order = f"sampling is up to {ahead} step{'s' * (ahead > 1)} ahead of training"
    if options.on_new_weights == "continue":
        order += " and takes new weights between two tokens: this run cannot be repeated bit for bit"
    return order
