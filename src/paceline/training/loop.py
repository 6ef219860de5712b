"""The algorithm: sample completions, grade and compare them, update the policy, record the step.

One loop for every door, wherever the sampler and the trainer behind `run.backend` are.
"""

from collections.abc import Callable, Iterator, Sequence

from paceline.training.learner.stats import UpdateStats
from paceline.training.rollouts.grouping import as_changed
from paceline.training.run import Run, StepClock, after_step, record_step, running
from paceline.types import RolloutGroup


class Step:
    """One turn of the loop, for ours and for a loop of one's own: first `sample`, then `update`."""

    def __init__(self, run: Run, number: int) -> None:
        self.number, self._run, self._clock = number, run, StepClock(run, number)
        self.is_finished = False

    def sample(self) -> tuple[RolloutGroup, ...]:
        """Generate, grade, and compare within each prompt; what an earlier attempt committed is read instead."""
        with self._clock.phase("wait", "sample"):
            self.sampled = self._run.journal.read(self.number) or self._run.backend.sample(self.number)
        return self.sampled.batch.groups

    def update(self, groups: Sequence[RolloutGroup]) -> UpdateStats:
        """Compute old logprobs, loss and gradient, and let AdamW update the weights; `groups` may be changed ones."""
        self.sampled = self.sampled.with_groups(as_changed(self.sampled.batch.groups, groups))
        with self._clock.phase("update", "update"):
            self.stats, self.learning_rate = self._run.backend.update(self.number, self.sampled.batch.groups)
        return self.stats

    def finish(self) -> None:
        """Record the step, once; then show it, evaluate, save a checkpoint or stop, as the observer requests."""
        if self.is_finished:
            return
        self.is_finished = True
        record = record_step(self._run, self.number, self.sampled, self.stats, self.learning_rate, self._clock)
        after_step(self._run, record, self.sampled.batch)


def steps(run: Run, *, interrupted: Callable[[], bool]) -> Iterator[Step]:
    """Yield each step to the last, until the observer asks to stop, or until `interrupted`."""
    for number in range(run.state.step + 1, run.inputs.total_steps + 1):
        if run.stopping or interrupted():
            return
        step = Step(run, number)
        yield step
        step.finish()


def run_steps(run: Run, *, interrupted: Callable[[], bool]) -> None:
    """Run the steps that are left."""
    with running(run):
        for step in steps(run, interrupted=interrupted):
            groups = step.sample()
            step.update(groups)
