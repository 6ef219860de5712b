"""The algorithm: sample completions, grade and compare them, update the policy, record the step.

One loop for every entry point, wherever the sampler and the trainer behind `run.backend` are. A loop of a program's own
takes the same steps: first `sample`, then `update`, then `finish`.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from paceline.errors import ConfigError, PacelineError, TrainingError
from paceline.training.learner.stats import UpdateStats
from paceline.training.rollouts.grouping import as_changed
from paceline.training.rollouts.restoring import restorable_lines
from paceline.training.rollouts.rounds import RolloutBatch
from paceline.training.run import Run, StepClock, after_step, record_step, running
from paceline.types import RolloutGroup


def steps(run: Run, *, interrupted: Callable[[], bool]) -> Iterator["Step"]:
    """Yield each step to the last, until the observer asks to stop, or until `interrupted`."""
    for number in range(run.state.step + 1, run.inputs.total_steps + 1):
        if run.stopping or interrupted():
            return
        step = Step(run, number)
        yield step
        step.finish()  # record it; evaluate, save a checkpoint or stop when it is due


def run_steps(run: Run, *, interrupted: Callable[[], bool]) -> None:
    """Run the steps that are left."""
    with running(run):
        for step in steps(run, interrupted=interrupted):
            groups = step.sample()  # generate, grade, compare within each prompt
            step.update(groups)  # old logprobs, loss, AdamW


class Step:
    """A training step under way."""

    def __init__(self, run: Run, number: int) -> None:
        self.number, self._run, self._clock = number, run, StepClock(run, number)
        self._batch: RolloutBatch | None = None
        self._updated: tuple[UpdateStats, float] | None = None
        self._is_finished = False

    @property
    def is_updated(self) -> bool:
        """True once the weights have the step's update."""
        return self._updated is not None

    def sample(self) -> tuple[RolloutGroup, ...]:
        """Generate, grade, and compare within each prompt, or read what an earlier attempt committed.

        A second call returns the same groups.
        """
        if self._batch is None:
            with self._clock.phase("wait", "sample"):
                committed = self._run.journal.read(self.number)
                self._batch = committed or self._newly_sampled()
            if committed is not None:
                self._clock.add_earlier("wait", committed.seconds)
        return self._batch.groups

    def _newly_sampled(self) -> RolloutBatch:
        """Sample the step; if it fails, its conversations stay in `rollouts/` until the run is resumed."""
        try:
            return self._run.backend.sample(self.number)
        except PacelineError as error:
            if isinstance(error.kept, tuple):
                records = map(json.loads, restorable_lines(error.kept))
                self._run.run_dir.write_rollouts(self.number, records)
            raise

    def update(self, groups: Sequence[RolloutGroup]) -> UpdateStats:
        """Compute old logprobs, loss and gradient, and let AdamW update the weights; `groups` may be changed ones.

        Raises:
            ConfigError: `sample` was not called, `update` was called already, or `groups` are not those of the step.
        """
        if self._batch is None:
            raise ConfigError(f"step {self.number} has no completions yet; call sample() before update(groups)")
        if self._updated is not None:
            raise ConfigError(f"step {self.number} has its update already; call update(groups) once in each step")
        self._batch = replace(self._batch, groups=as_changed(self._batch.groups, groups))
        with self._clock.phase("update", "update"):
            self._updated = self._run.backend.update(self.number, self._batch.groups)
        return self._updated[0]

    def finish(self) -> None:
        """Record the step, once; then show it, evaluate, save a checkpoint or stop, as the observer requests.

        Raises:
            TrainingError: the step has no update.
        """
        if self._is_finished:
            return
        if self._batch is None or self._updated is None:
            raise TrainingError(f"step {self.number} has no update; call sample() and update(groups) in each step")
        self._is_finished = True
        record = record_step(self._run, self.number, self._batch, *self._updated, self._clock)
        after_step(self._run, record, self._batch)
