"""The backend on the ranks of a launch, as the loop on the first rank sees it."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from paceline.checkpoints.finding import Checkpoint, TrainingState
from paceline.config.sections import Config
from paceline.runtime.progress import NULL_PROGRESS, Progress
from paceline.runtime.timeline import Span
from paceline.training.backend import Backend
from paceline.training.footprint import Footprint
from paceline.training.learner.stats import UpdateStats
from paceline.training.rollout_journal import Journal
from paceline.training.rollouts.sharing import SharedEngine, SharedRoundSampler
from paceline.training.sampled_step import NO_TRANSFER, SampledStep, WeightTransfer
from paceline.training.setup.evaluators import EvalResult, Evaluator
from paceline.training.setup.samplers import training_sampler
from paceline.training.task_sampler import TaskSampler, prompts_of_step
from paceline.types import RolloutGroup
from paceline.workers.torchrun.rank_group import RankGroup
from paceline.workers.torchrun.replicas import Renewed, check_copies
from paceline.workers.torchrun.training import RankUpdate

LEADER = "first rank"
"""Timeline row of what all ranks wait for."""


class TorchrunBackend(Backend):
    """A `Backend` that samples on its ranks, then trains on the same or others."""

    def __init__(
        self,
        config: Config,
        task_sampler: TaskSampler,
        group: RankGroup,
        *,
        policy_version: int,
        progress: Progress = NULL_PROGRESS,
    ) -> None:
        """`policy_version` is that of the ranks' weights; `progress` is told of work that the first rank only waits
        for."""
        self._config, self._task_sampler, self._group, self._policy_version = (
            config,
            task_sampler,
            group,
            policy_version,
        )
        self._producer = training_sampler(config, SharedRoundSampler(workers=group))
        self._transfer, self._is_stale, self._progress = NO_TRANSFER, False, progress

    @property
    @override
    def policy_version(self) -> int:
        return self._policy_version

    @override
    def begin(self, journal: Journal) -> None:
        self._journal, self._task_sampler.position = journal, journal.position

    @override
    def sample(self, number: int) -> SampledStep:
        clock = self._group.recorder.clock
        started = clock()
        self._renew()
        count = prompts_of_step(number, self._config.loop, num_tasks=len(self._task_sampler.tasks))
        with self._group.recorder.span(LEADER, f"produce {number}"):
            self._progress.phase("generate", 0, 1)
            batch = self._producer.sample(self._task_sampler.take, count)
            self._progress.phase("generate", 1, 1)
        transfer, self._transfer = self._transfer, NO_TRANSFER
        position, seconds = self._task_sampler.position, clock() - started
        sampled = SampledStep(batch=batch, position=position, seconds=seconds, transfer=transfer)
        self._journal.commit(number, sampled)
        return sampled

    @override
    def update(self, number: int, groups: Sequence[RolloutGroup]) -> tuple[UpdateStats, float]:
        with self._group.recorder.span(LEADER, f"update {number}"):
            answers: list[RankUpdate] = self._group.call_training("update", number, groups)
        found = answers[0]
        check_copies([one.held for one in answers], policy_version=found.policy_version)
        self._is_stale = self._is_stale or found.policy_version != self._policy_version
        self._policy_version = found.policy_version
        return found.stats, found.learning_rate

    @override
    def evaluate(self, evaluator: Evaluator, *, step: int) -> EvalResult:
        with self._group.recorder.span(LEADER, f"evaluate {step}"):
            self._renew()
            return evaluator.evaluate(SharedEngine(workers=self._group), step=step)

    @override
    def save(self, root: Path, state: TrainingState, protected: Collection[Path]) -> tuple[str, ...]:
        """Begin a checkpoint on every training rank, so `root` must be a path that all ranks share."""
        given = root.absolute(), state, frozenset(protected)
        with self._group.recorder.span(LEADER, f"checkpoint {state.step}"):
            found: tuple[str, ...] = self._group.call_training("save", *given)[0]
        return found

    @override
    def saved(self, *, wait: bool) -> Checkpoint | None:
        """The first rank commits for all, so no other rank is asked: this holds after an error too."""
        found: Checkpoint | None = self._group.ask_own("saved", wait)
        return found

    @override
    def footprint(self) -> Footprint:
        found: Footprint = self._group.call_training("footprint")[0]
        return found

    @override
    def export(self, folder: Path) -> None:
        self._group.call_training("export", folder.absolute())

    @override
    def news(self) -> list[str]:
        return []

    @override
    def foresee(self, steps: Sequence[Mapping[str, Any]]) -> float | None:
        return None

    @override
    def spans(self) -> list[Span]:
        return self._group.recorder.take()

    def _renew(self) -> None:
        """Bring the samplers to the current weights if theirs are stale."""
        if not self._is_stale:
            return
        answers: list[Renewed] = self._group.call("renew", self._policy_version)
        check_copies([one.held for one in answers], policy_version=self._policy_version)
        before, found, self._is_stale = self._transfer, answers[0].transfer, False
        self._transfer = WeightTransfer(seconds=before.seconds + found.seconds, nbytes=before.nbytes + found.nbytes)
