"""The algorithm: sample completions, grade and compare them, update the policy, record the step.

There is one loop for all entry points: each gives an `Observer`, which watches and makes requests between two steps.
It is the same loop wherever the work is done: in this process, or in others behind a `Backend`.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from paceline.checkpoints.finding import TrainingState
from paceline.checkpoints.run_directory import RunDir
from paceline.config.sections import Config
from paceline.errors import PacelineError, ProcessLost
from paceline.runtime.heartbeat import HEARTBEAT
from paceline.runtime.progress import NULL_PROGRESS, Progress
from paceline.runtime.timeline import Span, trace
from paceline.training.backend import Backend
from paceline.training.guards import NOT_FINITE, Guards
from paceline.training.learner.stats import UpdateStats
from paceline.training.observing import Observer, Requests
from paceline.training.records import step_clock, step_record, step_warnings
from paceline.training.rollout_journal import Journal
from paceline.training.rollouts.lines import restorable_lines
from paceline.training.rollouts.sampler import RolloutBatch
from paceline.training.sampled_step import SampledStep
from paceline.training.setup.evaluators import EvalResult, Evaluator
from paceline.training.setup.run_inputs import RunInputs

START = TrainingState(step=0, position=0, policy_version=0)


@dataclass(kw_only=True, slots=True)
class Run:
    """Everything that the loop touches, and where it stands."""

    config: Config
    inputs: RunInputs
    backend: Backend
    run_dir: RunDir
    journal: Journal
    observer: Observer
    guards: Guards
    progress: Progress = NULL_PROGRESS
    """Is told what the run turns to."""
    state: TrainingState = START
    stopping: bool = False
    """The observer wished the run to end after this step."""
    is_saving: bool = False
    """A checkpoint was begun that the observer has not been told of."""
    saved_step: int | None = None
    """Step of the newest checkpoint on disk; None if there is none."""
    checkpoint_seconds: float = 0.0
    """Seconds that the run waited for checkpoints."""
    clocked_until: float | None = None
    """Up to where the steps' clocks have counted; None: what came last has a clock of its own."""
    protected: set[Path] = field(default_factory=set)
    """Checkpoints that stay, however many come after them."""
    spans: list[Span] = field(default_factory=list)
    """Spans of the timeline, with `profile`."""

    def take_spans(self) -> None:
        """Keep what was done since the last call; without `profile` it is dropped."""
        spans = self.backend.spans()
        if self.config.loop.profile:
            self.spans += spans


def run_steps(run: Run, *, interrupted: Callable[[], bool]) -> None:
    """Run from the current step to the last, or until the observer asks to stop."""
    try:
        with ExitStack() as closing:
            closing.push(partial(wait_at_end, run))
            apply(run, run.observer.begin(run.state.step))
            while run.state.step < run.inputs.total_steps and not run.stopping and not interrupted():
                step(run, run.state.step + 1)
                apply(run, wait_for_checkpoint(run, wait=False))
    finally:
        if run.config.loop.profile:
            run.take_spans()
            run.run_dir.write_timeline(trace(run.spans))
    run.observer.end()


def step(run: Run, number: int) -> None:
    """Train one step: sample, compare, update, and record it before the next begins."""
    clock = StepClock(run, number)
    with clock.phase("wait", "sampled"):
        # generates, grades, and compares within each prompt; what an earlier attempt committed is not sampled again
        sampled = run.journal.read(number) or run.backend.sample(number)
    with clock.phase("update", "trained on"):
        # old logprobs, loss, AdamW
        stats, learning_rate = run.backend.update(number, sampled.batch.groups)
    stats = run.guards.counted(stats)
    record = write_record(run, number, sampled, stats, learning_rate, clock)
    report_step(run, number, sampled.batch, stats, record)
    apply(run, run.observer.step_end(record, sampled.batch))
    run.take_spans()


class StepClock:
    """Seconds of a step and of its two phases, each of which is announced to the heartbeat."""

    def __init__(self, run: Run, number: int) -> None:
        """Begin the step: the observer and the display are told."""
        # from where the last step's clock stopped: a step's own line can only be written once its clock has been read
        self._started, self._number = run.clocked_until or time.perf_counter(), number
        self._seconds = dict[str, float]()
        run.observer.step_begin(number)
        run.progress.begin(f"step {number}")

    @contextmanager
    def phase(self, name: str, doing: str) -> Iterator[None]:
        """Time the body of `with`."""
        HEARTBEAT.beat("run", f"step {self._number} is {doing}")
        started = time.perf_counter()
        yield
        self._seconds[name] = time.perf_counter() - started

    def read(self, sampled: SampledStep, now: float) -> dict[str, float]:
        """Sum up the step's seconds at `now`, by the names of the record's clock."""
        return step_clock(
            sampled.batch,
            weights=sampled.transfer.seconds,
            produce=sampled.seconds,
            wait=self._seconds["wait"],
            update=self._seconds["update"],
            total=now - self._started,
        )


def write_record(
    run: Run, number: int, sampled: SampledStep, stats: UpdateStats, learning_rate: float, clock: StepClock
) -> dict[str, Any]:
    """Move the run's state to behind the step, and append its record to `metrics.jsonl`.

    Raises:
        StorageError: the disk refused the record, or the rollouts that belong to it.
    """
    before, tasks = run.state.position, run.inputs.tasks
    run.state = TrainingState(step=number, position=sampled.position, policy_version=run.backend.policy_version)
    run.clocked_until = time.perf_counter()
    record = step_record(
        run.state,
        sampled.batch,
        stats,
        num_tasks=len(tasks.tasks),
        learning_rate=learning_rate,
        weights_bytes=sampled.transfer.nbytes,
        clock=clock.read(sampled, run.clocked_until),
    )
    if tasks.is_large:
        # rows that were passed over have a position and no group
        groups = sampled.batch.groups
        record["rows_left_out"] = sampled.position - before - len(groups)
        record["prompts_truncated"] = sum(group.task.tokens_cut > 0 for group in groups)
    record["alarms"] = list(run.guards.see(record))
    # a step whose rollouts are not on disk did not happen
    run.journal.wait()
    run.run_dir.append_metrics(record)
    return record


def report_step(run: Run, number: int, batch: RolloutBatch, stats: UpdateStats, record: Mapping[str, Any]) -> None:
    """Tell the observer what went otherwise than planned, and keep the rollouts of a skipped update.

    Raises:
        TrainingError: too many updates in a row were skipped.
    """
    warnings = step_warnings(number, batch, stats, max_refills=run.config.advantage.max_refills)
    notify(run, [*run.backend.news(), *warnings])
    if record.get("rows_left_out"):
        last = run.inputs.tasks.last_left_out
        notify(run, [f"step {number} left out {record['rows_left_out']} rows; the last: {last}"])
    notify(run, run.guards.sentences(number, stats))
    if stats.updates_skipped:
        kept = run.run_dir.keep_batch(number, restorable_lines(batch.groups), reason=NOT_FINITE)
        run.guards.check(number, kept)


def apply(run: Run, wanted: Requests) -> None:
    """Do what the observer requests; an evaluation or a checkpoint may make it request more."""
    if wanted.evaluate and run.inputs.evaluators:
        results = evaluate(run, run.inputs.evaluators)
        wanted |= run.observer.evaluated(results)
    if wanted.save:
        wanted |= save(run)
    if wanted.evaluate or wanted.save:
        run.clocked_until = None
    run.stopping = run.stopping or wanted.stop


def evaluate(run: Run, evaluators: Iterable[Evaluator]) -> list[EvalResult]:
    """Evaluate held-out tasks with the current weights, and record the results."""
    HEARTBEAT.beat("run", f"evaluation after step {run.state.step}")
    run.progress.begin("evaluation")
    results = [run.backend.evaluate(evaluator, step=run.state.step) for evaluator in evaluators]
    for result in results:
        run.run_dir.write_eval_completions(result.name, result.step, result.completion_records())
        run.run_dir.append_eval(result.record())
    return results


def save(run: Run) -> Requests:
    """Begin a checkpoint once the one before is on disk; in the foreground it is on disk on return."""
    requests = wait_for_checkpoint(run, wait=True)
    started = time.perf_counter()
    HEARTBEAT.beat("run", f"checkpoint of step {run.state.step}")
    run.progress.begin("checkpoint")
    sentences = run.backend.save(run.run_dir.path / "checkpoints", run.state, run.protected)
    run.checkpoint_seconds += time.perf_counter() - started
    run.is_saving = True
    notify(run, sentences)
    return requests | wait_for_checkpoint(run, wait=not run.config.loop.background_save)


def save_last(run: Run) -> None:
    """Have a checkpoint of this moment on disk, where it is not there already."""
    wait_for_checkpoint(run, wait=True)
    if run.saved_step != run.state.step:
        save(run)
        wait_for_checkpoint(run, wait=True)


def wait_for_checkpoint(run: Run, *, wait: bool) -> Requests:
    """Tell the observer of the checkpoint that was begun, once it is on disk; what that makes it ask for."""
    if not run.is_saving:
        return Requests()
    started = time.perf_counter()
    checkpoint = run.backend.saved(wait=wait)
    run.checkpoint_seconds += time.perf_counter() - started
    if checkpoint is None:
        return Requests()
    run.is_saving, run.saved_step = False, checkpoint.state.step
    return run.observer.saved(checkpoint)


def wait_at_end(
    run: Run, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
) -> None:
    """Wait for the checkpoint that was begun, whatever ended the steps; but not where there is no time, or nobody who
    could finish it: then it is not there."""
    if error is None:
        wait_for_checkpoint(run, wait=True)
    elif not isinstance(error, KeyboardInterrupt | ProcessLost):
        try:
            wait_for_checkpoint(run, wait=True)
        except PacelineError as second:  # what ended the run is what is raised
            notify(run, [str(second)])


def notify(run: Run, sentences: Iterable[str]) -> None:
    """Pass sentences to the observer."""
    for sentence in sentences:
        run.observer.notify(sentence)
