"""A run under way: everything that its loop touches, and what happens around and between its steps.

Its guards watch the metrics: skipped updates, alarms, memory that ran out. They warn, or stop the run.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from paceline.checkpoints.finding import Checkpoint, TrainingState
from paceline.checkpoints.run_directory import RunDir
from paceline.config.sections import Config
from paceline.errors import CheckpointError, PacelineError, ProcessLost, TrainingError
from paceline.metrics.alarms import AlarmChange, AlarmState
from paceline.metrics.definitions import METRICS, OPTIONAL, Record, check_record
from paceline.reports.trackers import Trackers
from paceline.runtime.activity import ACTIVITY, RUN, trace
from paceline.training.backend import Backend
from paceline.training.evaluation import AccuracyResult, EvalResult, Evaluator
from paceline.training.learner.stats import UpdateStats
from paceline.training.records import first_look, step_clock, step_warnings
from paceline.training.rollout_journal import Journal
from paceline.training.rollouts.records import rollout_metrics, staleness_metrics
from paceline.training.rollouts.restoring import restorable_lines
from paceline.training.rollouts.rounds import RolloutBatch
from paceline.training.setup.inputs import RunInputs

MOST_SKIPPED = 3
"""Skipped updates in a row at which a run stops: one may be chance, three are not."""
NOT_FINITE = "loss or gradient was not finite"


def refuse_other_records(path: Path, records: Sequence[Record]) -> None:
    """Refuse to resume a run whose records lack a metric that this version reads, as another version wrote them.

    Raises:
        CheckpointError: a record lacks a metric; the sentence names step and metric.
    """
    for record in records:
        missing = sorted(METRICS.keys() - OPTIONAL - record.keys())
        if missing:
            raise CheckpointError(
                f"--resume {path}: step {record['step']} of metrics.jsonl has no {missing[0]}, as another version "
                "wrote it; resume with that version, or start a new run from a checkpoint's model/"
            )


class Guards:
    """Skipped updates and alarms over all steps of a run, including those before it was resumed."""

    def __init__(self, past: Sequence[Record] = ()) -> None:
        """`past`: records of the steps before the run was resumed."""
        self._alarms = AlarmState(past)
        self._in_a_row: int = past[-1]["skipped_in_a_row"] if past else 0
        self._changes = list[AlarmChange]()

    def counted(self, stats: UpdateStats) -> UpdateStats:
        """Return a step's statistics, with skipped updates counted over earlier steps too."""
        self._in_a_row = stats.skipped_in_a_row + (0 if stats.updates else self._in_a_row)
        return replace(stats, skipped_in_a_row=self._in_a_row)

    def see(self, record: Record) -> tuple[str, ...]:
        """Take a step's numbers; returns the names of the alarms that are active after it."""
        self._changes = self._alarms.see(record)
        return self._alarms.active

    def sentences(self, number: int, stats: UpdateStats) -> list[str]:
        """Return sentences for the user on this step's changes."""
        lines = [change.describe() for change in self._changes]
        if stats.micro_batches_halved:
            lines.append(
                f"memory ran out in step {number}: the step was repeated, and from here on micro-batches have at most "
                f"{stats.micro_batch_tokens} tokens"
            )
        if stats.updates_skipped:
            lines.append(
                f"step {number}: {stats.updates_skipped} of {stats.updates_skipped + stats.updates} updates skipped, "
                f"as {NOT_FINITE}; the weights are as they were"
            )
        return lines

    def check(self, number: int, kept: Path) -> None:
        """Stop the run after too many skipped updates, before it is saved. `kept`: file of the step's rollouts.

        Raises:
            TrainingError: too many updates in a row were skipped.
        """
        if self._in_a_row >= MOST_SKIPPED:
            raise TrainingError(
                f"{self._in_a_row} updates in a row up to step {number} were skipped, as {NOT_FINITE}",
                remedies=["lower --learning-rate", f"look for an extreme number in {kept}"],
                then="--resume continues from the last checkpoint",
            )


START = TrainingState(step=0, position=0, policy_version=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Requests:
    """Work requested before the next step, in order: an evaluation, a checkpoint, the end."""

    evaluate: bool = False
    save: bool = False
    stop: bool = False

    def __or__(self, other: "Requests") -> "Requests":
        return Requests(
            evaluate=self.evaluate or other.evaluate, save=self.save or other.save, stop=self.stop or other.stop
        )


class Observer(Protocol):
    """Gets every event of a run in order; changes nothing but by its requests."""

    def start(self, run: "Run", trackers: Trackers) -> None:
        """The run is open, at its first step or restored."""

    def begin(self, steps_done: int) -> Requests:
        """The steps start, or continue after `steps_done` of them."""

    def step_begin(self, number: int) -> None:
        """Step 1, 2, ... starts."""

    def step_end(self, record: Record, batch: RolloutBatch) -> Requests:
        """A step is done and recorded."""

    def evaluated(self, results: Sequence[EvalResult]) -> Requests:
        """Every held-out set was measured with the current weights."""

    def saved(self, checkpoint: Checkpoint) -> Requests:
        """A checkpoint is on disk."""

    def notify(self, sentence: str) -> None:
        """A sentence for the user."""

    def end(self) -> None:
        """No step follows."""


@dataclass(kw_only=True, slots=True)
class Run:
    """State of a run, and the parts that its loop works with."""

    config: Config
    inputs: RunInputs
    backend: Backend
    run_dir: RunDir
    journal: Journal
    observer: Observer
    guards: Guards
    state: TrainingState = START
    stopping: bool = False
    """The observer has requested the end of the run after this step."""
    is_saving: bool = False
    """A checkpoint was begun, and `saved` was not called for it yet."""
    saved_step: int | None = None
    """Step of the newest checkpoint on disk; None if there is none."""
    checkpoint_seconds: float = 0.0
    """Seconds that the run waited for checkpoints."""
    clocked_until: float | None = None
    """End of the last step's clock, in seconds; None after work with a clock of its own."""
    protected: set[int] = field(default_factory=set)
    """Steps whose checkpoints are never deleted."""


@contextmanager
def running(run: Run) -> Iterator[None]:
    """Run all steps inside: begin and end the observer, wait for the last checkpoint, write the timeline."""
    try:
        with ExitStack() as closing:
            closing.push(partial(wait_at_end, run))
            apply(run, run.observer.begin(run.state.step))
            yield
    finally:
        if ACTIVITY.spans is not None:
            run.run_dir.write_timeline(trace(ACTIVITY.spans))
    run.observer.end()


class StepClock:
    """Clock of a step and its two phases, in seconds."""

    def __init__(self, run: Run, number: int) -> None:
        """Begin the step, on the observer and on the display too."""
        # from where the last step's clock stopped: a step's own line can only be written once its clock has been read
        self.started, self._number = run.clocked_until or time.perf_counter(), number
        self.seconds = dict[str, float]()
        run.observer.step_begin(number)
        ACTIVITY.begin(f"step {number}")

    @contextmanager
    def phase(self, name: str, doing: str) -> Iterator[None]:
        """Time the body of `with`."""
        started = time.perf_counter()
        with ACTIVITY.span(RUN, f"{doing} {self._number}"):
            yield
        self.seconds[name] = time.perf_counter() - started

    def add_earlier(self, name: str, seconds: float) -> None:
        """Count seconds that an earlier attempt spent on the step: its phases are in the record, so in the total."""
        self.seconds[name] += seconds
        self.started -= seconds


def record_step(
    run: Run, number: int, batch: RolloutBatch, stats: UpdateStats, learning_rate: float, clock: StepClock
) -> dict[str, Any]:
    """Advance the run's state, append the step's record to `metrics.jsonl`, and report what went wrong in it.

    Raises:
        StorageError: the disk refused the record, or the rollouts that belong to it.
        TrainingError: too many updates in a row were skipped.
    """
    before, tasks, stats = run.state.position, run.inputs.tasks, run.guards.counted(stats)
    version, transfer = run.backend.policy_version, batch.transfer
    run.state = TrainingState(step=number, position=batch.position, policy_version=version)
    run.clocked_until = time.perf_counter()
    total = run.clocked_until - clock.started
    # the line in `metrics.jsonl`; names and units are those of `metrics.METRICS`
    updates = {name: getattr(stats, name) for name in stats.__slots__}
    record: dict[str, Any] = {
        "step": number,
        "epoch": batch.position / len(tasks.tasks),
        "policy_version": version,
        "learning_rate": learning_rate,
        **rollout_metrics(batch),
        **staleness_metrics(batch.groups, policy_version=version - stats.updates),
        **{name: value for name, value in updates.items() if value is not None or name not in OPTIONAL},
        "alarms": [],
        "clock": {
            **step_clock(batch, weights=transfer.seconds, produce=batch.seconds, total=total, **clock.seconds),
            **run.backend.image_clock(),
            "time": time.time(),
        },
    }
    if transfer.nbytes:
        record["weights_bytes"] = transfer.nbytes
    check_record(record)
    if tasks.is_large:
        # rows that were passed over have a position and no group
        record["rows_left_out"] = batch.position - before - len(batch.groups)
        record["prompts_truncated"] = sum(group.task.tokens_cut > 0 for group in batch.groups)
    record["alarms"] = list(run.guards.see(record))
    # a step whose rollouts are not on disk did not happen
    run.journal.wait()
    run.run_dir.append_metrics(record)
    sentences = [
        *run.backend.news(),
        *step_warnings(number, batch, stats, max_refills=run.config.advantage.max_refills),
    ]
    if record.get("rows_left_out"):
        sentences.append(f"step {number} left out {record['rows_left_out']} rows; the last: {tasks.last_left_out}")
    notify(run, [*sentences, *run.guards.sentences(number, stats)])
    if stats.updates_skipped:
        kept = run.run_dir.keep_batch(number, restorable_lines(batch.groups), reason=NOT_FINITE)
        run.guards.check(number, kept)
    return record


def after_step(run: Run, record: Record, batch: RolloutBatch) -> None:
    """Show a step that is recorded, and do what the observer requests before the next."""
    apply(run, run.observer.step_end(record, batch))
    apply(run, wait_for_checkpoint(run, wait=False))


def apply(run: Run, wanted: Requests) -> None:
    """Do what the observer requests; an evaluation or a checkpoint may make it request more."""
    if wanted.evaluate and run.inputs.evaluators:
        results = evaluate(run, run.inputs.evaluators)
        wanted |= run.observer.evaluated(results)
        if run.state.step == 0:
            notify(run, first_look(run.config, results))
    if wanted.save:
        wanted |= save(run)
    if wanted.evaluate or wanted.save:
        run.clocked_until = None
    run.stopping = run.stopping or wanted.stop


def evaluate(run: Run, evaluators: Iterable[Evaluator]) -> list[EvalResult]:
    """Evaluate held-out tasks with the current weights, and record the results."""
    step = run.state.step
    ACTIVITY.begin(f"evaluation after step {step}")
    with ACTIVITY.span(RUN, f"evaluate {step}"):
        try:
            results = []
            for evaluator in evaluators:
                run.journal.keep_images(evaluator.tasks)
                results.append(run.backend.evaluate(evaluator, step=step))
        except PacelineError as error:
            keep_given_up(run.run_dir, error)
            raise
    for result in results:
        run.run_dir.write_eval_completions(result.name, result.step, result.completion_records())
        run.run_dir.append_eval(timed(result.record()))
    return results


def keep_given_up(run_dir: RunDir, error: PacelineError) -> None:
    """Write the completions of an evaluation that failed, without its numbers."""
    if isinstance(error.kept, AccuracyResult):
        run_dir.write_eval_completions(error.kept.name, error.kept.step, error.kept.completion_records())


def timed(record: dict[str, Any]) -> dict[str, Any]:
    """Return an evaluation's record with the time at which it ended, in seconds since 1970."""
    return {**record, "clock": {**record["clock"], "time": time.time()}}


def save(run: Run) -> Requests:
    """Begin a checkpoint once the one before is on disk; in the foreground it is on disk on return."""
    requests = wait_for_checkpoint(run, wait=True)
    started = time.perf_counter()
    ACTIVITY.begin(f"checkpoint of step {run.state.step}")
    with ACTIVITY.span(RUN, f"checkpoint {run.state.step}"):
        sentences = run.backend.save(run.run_dir.path / "checkpoints", run.state, run.protected)
    run.checkpoint_seconds += time.perf_counter() - started
    run.is_saving = True
    notify(run, sentences)
    return requests | wait_for_checkpoint(run, wait=not run.config.loop.background_save)


def save_last(run: Run) -> None:
    """Write a checkpoint of the current step, unless there is one."""
    wait_for_checkpoint(run, wait=True)
    if run.saved_step != run.state.step:
        save(run)
        wait_for_checkpoint(run, wait=True)


def wait_for_checkpoint(run: Run, *, wait: bool) -> Requests:
    """Report a checkpoint to the observer once it is on disk; returns the observer's requests."""
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
