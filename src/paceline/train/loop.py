"""The algorithm. A step: take prompts, sample completions, score them, update the policy, write it down.

One loop for every door: who watches, and what is asked for between two steps, is the door's `Observer`.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from paceline.checkpoint import Progress, save_checkpoint
from paceline.config import Config
from paceline.learner import UpdateStats
from paceline.rollouts import RolloutBatch, rollout_records
from paceline.rundir import RunDir
from paceline.schedule import learning_rate
from paceline.train.assembly import Parts, Prepared, updates_per_step
from paceline.train.feed import Feed, prompts_of_step
from paceline.train.measuring import Measurement, Meter
from paceline.train.observing import Observer, Wishes, is_due
from paceline.train.records import step_clock, step_record, step_warnings

START = Progress(step=0, position=0, policy_version=0)


@dataclass(kw_only=True, slots=True)
class Run:
    """Everything that the loop touches, and where it stands."""

    config: Config
    prepared: Prepared
    parts: Parts
    run_dir: RunDir
    feed: Feed
    observer: Observer
    progress: Progress = START
    stopping: bool = False
    """The observer wished the run to end after this step."""
    checkpoint_seconds: float = 0.0
    protected: set[Path] = field(default_factory=set)
    """Checkpoints that stay, however many come after them."""


def run_steps(run: Run, *, interrupted: Callable[[], bool]) -> None:
    """From where the run stands to its last step, or until somebody wishes to stop."""
    grant(run, run.observer.begin(run.progress.step))
    while run.progress.step < run.prepared.total_steps and not run.stopping and not interrupted():
        step(run)
    run.observer.end()


def step(run: Run) -> None:
    """One step, from prompts to new weights, written down before the next begins."""
    started = time.perf_counter()
    number, learner = run.progress.step + 1, run.parts.learner
    run.observer.step_begin(number)
    count = prompts_of_step(number, run.config.loop, num_tasks=len(run.feed.tasks))
    batch = run.parts.producer.make(run.feed.take, count)
    updating = time.perf_counter()
    stats, rate = update(run, number, batch)
    update_seconds = time.perf_counter() - updating
    run.run_dir.write_rollouts(number, rollout_records(batch.groups))
    run.progress = Progress(step=number, position=run.feed.position, policy_version=learner.policy_version)
    record = step_record(
        run.progress,
        batch,
        stats,
        num_tasks=len(run.feed.tasks),
        learning_rate=rate,
        clock=step_clock(batch, update_seconds=update_seconds, total=time.perf_counter() - started),
    )
    run.run_dir.append_metrics(record)
    tell(run, step_warnings(number, batch, stats, max_refills=run.config.advantage.max_refills))
    grant(run, run.observer.step_end(record, batch))


def update(run: Run, number: int, batch: RolloutBatch) -> tuple[UpdateStats, float]:
    """All updates of a step, and the learning rate of the last of them.

    A scheduler of torch counts every update, also those that a step without signal does not make.
    """
    learner, stepped, optim = run.parts.learner, run.parts.rate, run.config.optim
    if stepped is None:
        rate = learning_rate(
            number,
            peak=optim.learning_rate,
            schedule=optim.lr_schedule,
            warmup_steps=optim.warmup_steps,
            total_steps=run.prepared.total_steps,
            min_ratio=optim.min_lr_ratio,
        )
        stats = learner.step(batch.groups, learning_rate=rate)
    else:
        before = learner.policy_version
        stats = learner.step(batch.groups, learning_rate=None, after_update=stepped.advance)
        stepped.advance(updates_per_step(run.config) - (learner.policy_version - before))
        rate = stepped.last
    run.parts.engine.policy_version = learner.policy_version
    if is_due(number, run.config.loss.ref_sync_steps):
        learner.sync_reference()
    return stats, rate


def grant(run: Run, wanted: Wishes) -> None:
    """Do what the observer asks for; what it learns by it may make it ask for more."""
    if wanted.evaluate and run.prepared.meters:
        measurements = evaluate(run, run.prepared.meters)
        wanted |= run.observer.evaluated(measurements)
    if wanted.save:
        wanted |= save(run)
    run.stopping = run.stopping or wanted.stop


def evaluate(run: Run, meters: Iterable[Meter]) -> list[Measurement]:
    """Measure held-out tasks with the weights as they are, and write it down."""
    measurements = [meter.measure(run.parts.engine, step=run.progress.step) for meter in meters]
    for measurement in measurements:
        run.run_dir.write_eval_completions(measurement.name, measurement.step, measurement.completion_records())
        run.run_dir.append_eval(measurement.record())
    return measurements


def save(run: Run) -> Wishes:
    """Write a checkpoint of this moment."""
    started = time.perf_counter()
    checkpoint = save_checkpoint(
        run.run_dir.path / "checkpoints",
        run.progress,
        loaded=run.parts.policy,
        tokenizer=run.prepared.tokenizer,
        optimizer=run.parts.learner.optimizer,
        keep=run.config.loop.save_total_limit,
        reference=run.parts.learner.reference if run.config.loss.ref_sync_steps else None,
        protected=run.protected,
    )
    run.checkpoint_seconds += time.perf_counter() - started
    return run.observer.saved(checkpoint)


def tell(run: Run, sentences: Iterable[str]) -> None:
    """Say something to whoever watches."""
    for sentence in sentences:
        run.observer.tell(sentence)
