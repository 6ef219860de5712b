"""The algorithm: sample completions, grade and compare them, update the policy, record the step.

One loop for every entry point, wherever the sampler and the trainer behind `run.backend` are.
"""

from collections.abc import Callable, Iterator

from paceline.training.run import Run, running
from paceline.training.step import Step


def steps(run: Run, *, interrupted: Callable[[], bool]) -> Iterator[Step]:
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
