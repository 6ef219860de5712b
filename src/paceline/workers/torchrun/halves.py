"""Both backend of a step on all ranks of a launch, as the loop on the first one sees them."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.checkpoints.finding import Checkpoint, TrainingState
from paceline.config.sections import Config
from paceline.runtime.progress import NULL_PROGRESS, Progress
from paceline.runtime.timeline import Span
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
"""The row of a timeline that shows what all are waited for."""


class TorchrunBackend:
    """`Backend` that take turns: ranks sample, then the same or others train."""

    def __init__(
        self,
        config: Config,
        task_sampler: TaskSampler,
        group: RankGroup,
        *,
        policy_version: int,
        progress: Progress = NULL_PROGRESS,
    ) -> None:
        """`policy_version` is that of the weights that the ranks have. `progress` is told of what others do alone."""
        self._config, self._task_sampler, self._group, self._policy_version = (
            config,
            task_sampler,
            group,
            policy_version,
        )
        self._producer = training_sampler(config, SharedRoundSampler(workers=group))
        self._transfer, self._is_stale, self._progress = NO_TRANSFER, False, progress

    @property
    def policy_version(self) -> int:
        """See `Backend`."""
        return self._policy_version

    def begin(self, journal: Journal) -> None:
        """See `Backend`."""
        self._journal, self._task_sampler.position = journal, journal.position

    def sample(self, number: int) -> SampledStep:
        """See `Backend`."""
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

    def update(self, number: int, groups: Sequence[RolloutGroup]) -> tuple[UpdateStats, float]:
        """See `Backend`."""
        with self._group.recorder.span(LEADER, f"update {number}"):
            answers: list[RankUpdate] = self._group.call_training("update", number, groups)
        found = answers[0]
        check_copies([one.held for one in answers], policy_version=found.policy_version)
        self._is_stale = self._is_stale or found.policy_version != self._policy_version
        self._policy_version = found.policy_version
        return found.stats, found.learning_rate

    def evaluate(self, evaluator: Evaluator, *, step: int) -> EvalResult:
        """See `Backend`."""
        with self._group.recorder.span(LEADER, f"evaluate {step}"):
            self._renew()
            return evaluator.evaluate(SharedEngine(workers=self._group), step=step)

    def save(self, root: Path, state: TrainingState, protected: Collection[Path]) -> tuple[str, ...]:
        """See `Backend`. Every rank that trains may write a part of it, so `root` must be all ranks' own."""
        given = root.absolute(), state, frozenset(protected)
        with self._group.recorder.span(LEADER, f"checkpoint {state.step}"):
            found: tuple[str, ...] = self._group.call_training("save", *given)[0]
        return found

    def saved(self, *, wait: bool) -> Checkpoint | None:
        """See `Backend`. The first rank commits for all, so nobody else is asked: that holds after an error too."""
        found: Checkpoint | None = self._group.ask_own("saved", wait)
        return found

    def footprint(self) -> Footprint:
        """See `Backend`."""
        found: Footprint = self._group.call_training("footprint")[0]
        return found

    def export(self, folder: Path) -> None:
        """See `Backend`."""
        self._group.call_training("export", folder.absolute())

    def news(self) -> list[str]:
        """See `Backend`."""
        return []

    def foresee(self, steps: Sequence[Mapping[str, Any]]) -> float | None:
        """See `Backend`."""
        return None

    def spans(self) -> list[Span]:
        """See `Backend`."""
        return self._group.recorder.take()

    def _renew(self) -> None:
        """What is sampled next is sampled from the weights as they are."""
        if not self._is_stale:
            return
        answers: list[Renewed] = self._group.call("renew", self._policy_version)
        check_copies([one.held for one in answers], policy_version=self._policy_version)
        before, found, self._is_stale = self._transfer, answers[0].transfer, False
        self._transfer = WeightTransfer(seconds=before.seconds + found.seconds, nbytes=before.nbytes + found.nbytes)
