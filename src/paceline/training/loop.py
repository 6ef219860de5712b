"""The algorithm: sample completions, grade and compare them, update the policy, record the step.

One loop for every door, wherever the sampler and the trainer behind `run.backend` are.
"""

from collections.abc import Callable

from paceline.training.run import Run, StepClock, after_step, record_step, running


def run_steps(run: Run, *, interrupted: Callable[[], bool]) -> None:
    """Run from the current step to the last, until the observer asks to stop, or until `interrupted`."""
    with running(run):
        for step in range(run.state.step + 1, run.inputs.total_steps + 1):
            if run.stopping or interrupted():
                break
            clock = StepClock(run, step)
            with clock.phase("wait", "sample"):
                # generate, grade, compare within each prompt; what an earlier attempt committed is read instead
                sampled = run.journal.read(step) or run.backend.sample(step)
            with clock.phase("update", "update"):
                # old logprobs, loss, AdamW
                stats, learning_rate = run.backend.update(step, sampled.batch.groups)
            record = record_step(run, step, sampled, stats, learning_rate, clock)
            after_step(run, record, sampled.batch)  # show, evaluate, checkpoint, stop
