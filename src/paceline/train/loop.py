"""The algorithm. A step: take prompts, sample completions, score them, update the policy, write it down.

Held-out accuracy is measured before the first step and after the last, on tasks that are never trained on.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from paceline.checkpoint import Progress, newest_checkpoint, save_checkpoint
from paceline.config import Config, to_yaml
from paceline.console import RunDisplay, percent
from paceline.data import task_index
from paceline.models import save_model
from paceline.report import write_report
from paceline.rollouts import rollout_records
from paceline.rundir import RunDir
from paceline.schedule import learning_rate
from paceline.stopping import StopRequest
from paceline.summary import summarise
from paceline.train.assembly import Parts, Prepared, assemble, prepare
from paceline.train.records import opening_sentences, step_clock, step_record
from paceline.types import Task

START = Progress(step=0, position=0, policy_version=0)


@dataclass(kw_only=True, slots=True)
class Run:
    """Everything that the loop touches, and where it stands."""

    config: Config
    prepared: Prepared
    parts: Parts
    run_dir: RunDir
    display: RunDisplay
    progress: Progress
    checkpoint_seconds: float = 0.0


def train(config: Config, output_dir: Path, *, resume: bool, console: Console) -> bool:
    """Train to the last step, or to an interrupt.

    Returns:
        True when the run is finished, False when a signal stopped it with a checkpoint to resume from.
    """
    prepared = prepare(config)
    found = RunDir.open(output_dir) if resume else None
    checkpoint, damaged = newest_checkpoint(output_dir / "checkpoints") if resume else (None, ())
    parts = assemble(config, prepared, checkpoint)
    # a new run directory is made last: weights that cannot be loaded leave nothing behind
    with found or RunDir.create(output_dir, to_yaml(config)) as run_dir:
        run_dir.truncate_after(-1 if checkpoint is None else checkpoint.progress.step)
        progress = START if checkpoint is None else checkpoint.progress
        display = RunDisplay(console, total_steps=prepared.total_steps, done=progress.step)
        run = Run(config=config, prepared=prepared, parts=parts, run_dir=run_dir, display=display, progress=progress)
        torn = [f"{run_dir.torn_lines} unfinished lines cut from the run's records"] if run_dir.torn_lines else []
        for sentence in [*damaged, *torn, *opening_sentences(prepared, parts, checkpoint)]:
            display.say(sentence)
        with display, StopRequest() as stop:
            if checkpoint is None:
                evaluate(run)
            while run.progress.step < prepared.total_steps and stop.received is None:
                step(run)
        if run.progress.step < prepared.total_steps:
            save(run)
            display.say(
                f"{stop.received} after step {run.progress.step}; `paceline train --resume {output_dir}` goes on"
            )
            return False
        finish(run, console)
    return True


def step(run: Run) -> None:
    """One step, from prompts to new weights, written down before the next begins."""
    started = time.perf_counter()
    number, total_steps, learner = run.progress.step + 1, run.prepared.total_steps, run.parts.learner
    tasks, occurrences = take_tasks(run)
    batch = run.parts.producer.make(tasks, occurrences=occurrences)
    rate = learning_rate(
        number,
        peak=run.config.optim.learning_rate,
        schedule=run.config.optim.lr_schedule,
        warmup_steps=run.config.optim.warmup_steps,
        total_steps=total_steps,
        min_ratio=run.config.optim.min_lr_ratio,
    )
    updating = time.perf_counter()
    stats = learner.step(batch.groups, learning_rate=rate)
    run.parts.engine.policy_version = learner.policy_version
    update_seconds = time.perf_counter() - updating
    run.run_dir.write_rollouts(number, rollout_records(batch.groups))
    run.progress = Progress(
        step=number, position=run.progress.position + len(tasks), policy_version=learner.policy_version
    )
    record = step_record(
        run.progress,
        batch,
        stats,
        num_tasks=len(run.prepared.tasks.tasks),
        learning_rate=rate,
        clock=step_clock(batch, update_seconds=update_seconds, total=time.perf_counter() - started),
    )
    run.run_dir.append_metrics(record)
    run.display.step(record)
    if is_due(number, run.config.evaluation.eval_steps) or number == total_steps:
        evaluate(run)
    if is_due(number, run.config.loop.save_steps):
        save(run)


def take_tasks(run: Run) -> tuple[list[Task], list[int]]:
    """The next prompts of the data order, and how often each came before.

    The last step of a run in epochs takes what is left, so that no prompt is dropped.
    """
    tasks, loop = run.prepared.tasks.tasks, run.config.loop
    start, count = run.progress.position, loop.prompts_per_step
    if loop.max_steps is None:
        count = max(1, min(count, round(loop.num_epochs * len(tasks)) - start))
    positions = range(start, start + count)
    shuffle = run.config.data.shuffle
    order = [task_index(p, size=len(tasks), seed=loop.seed, shuffle=shuffle) for p in positions]
    return [tasks[index] for index in order], [position // len(tasks) for position in positions]


def is_due(number: int, every: int) -> bool:
    """Whether something done every so many steps (0: never) is due after this one."""
    return every > 0 and number % every == 0


def evaluate(run: Run) -> None:
    """Measure held-out accuracy with the weights as they are."""
    if run.prepared.evaluator is None:
        return
    evaluation = run.prepared.evaluator.measure(run.parts.engine, step=run.progress.step)
    run.run_dir.write_eval_completions(evaluation.name, run.progress.step, evaluation.completion_records())
    run.run_dir.append_eval(evaluation.record())
    run.display.say(
        f"held-out accuracy after step {run.progress.step}: {percent(evaluation.accuracy)} "
        f"({evaluation.name}, n = {len(evaluation.outcomes)}, {evaluation.seconds:.1f} s)"
    )


def save(run: Run) -> None:
    """Write a checkpoint of this moment."""
    started = time.perf_counter()
    save_checkpoint(
        run.run_dir.path / "checkpoints",
        run.progress,
        model=run.parts.policy.model,
        tokenizer=run.prepared.tokenizer,
        optimizer=run.parts.learner.optimizer,
        keep=run.config.loop.save_total_limit,
    )
    run.checkpoint_seconds += time.perf_counter() - started


def finish(run: Run, console: Console) -> None:
    """Export the model, sum the run up, draw its report."""
    output_dir, policy = run.run_dir.path, run.parts.policy
    save_model(policy.model, run.prepared.tokenizer, output_dir / "final", policy.compute_dtype)
    summarise(run.run_dir, checkpoint_seconds=run.checkpoint_seconds, console=console)
    console.print(f"model   {output_dir / 'final'}", soft_wrap=True)
    console.print(f"report  {write_report(output_dir)}", soft_wrap=True)
