"""A trainer's run around the loop: start, observer, best model, last numbers; TRL's counts beside ours."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import cast

from rich.console import Console
from transformers import TrainerState
from transformers.trainer_utils import TrainOutput

from paceline.checkpoints.finding import Checkpoint, read_checkpoint
from paceline.checkpoints.run_directory import RunDir
from paceline.compat.trl.batches import batches_of, group_size, steps_per_generation
from paceline.compat.trl.callbacks import CallbackObserver, read_state
from paceline.compat.trl.checkpoints import Start, drop_broken_links
from paceline.compat.trl.config import GRPOConfig
from paceline.compat.trl.history import LogNumbers
from paceline.compat.trl.refused import accepted_without_effect
from paceline.config.building import build_config
from paceline.config.changing import changes_what_is_computed, differences, plain_options
from paceline.config.flat_yaml import parse_yaml, to_yaml
from paceline.config.sections import Config
from paceline.errors import CheckpointError
from paceline.models.loading import restore_weights
from paceline.runtime.signals import GraceOver, StopRequest
from paceline.training.assembly import Parts
from paceline.training.backend import OneProcess, make_task_sampler
from paceline.training.footprint import refuse_no_room
from paceline.training.loop import Run, notify, run_steps, save_last
from paceline.training.records import engine_sentences, run_sentences, trainer_sentences
from paceline.training.session import (
    directory_sentences,
    finish,
    last_checkpoint,
    make_run,
    run_trackers,
    set_later_aside,
)
from paceline.training.setup.run_inputs import RunInputs
from paceline.training.trainer import updates_per_step


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob:
    """Everything that a trainer's run needs."""

    args: GRPOConfig
    config: Config
    inputs: RunInputs
    parts: Parts
    notes: tuple[str, ...]
    """Sentences for the user before the first step."""
    observer: CallbackObserver
    console: Console

    @property
    def output_dir(self) -> Path:
        """The run directory."""
        return Path(str(self.args.output_dir))


def run_training(job: TrainingJob, start: Start) -> TrainOutput:
    """Run all steps, load the best model if asked, write the final directory and the last numbers."""
    started, checkpoint = time.perf_counter(), start.checkpoint
    with ExitStack() as closing:
        opened = RunDir.open(job.output_dir) if start.resumed else RunDir.create(job.output_dir, to_yaml(job.config))
        run_dir = closing.enter_context(opened)
        if checkpoint is not None:
            job.parts.trainer.restore(checkpoint)
            job.parts.engine.take_weights(checkpoint.state.policy_version)
        elif job.parts.trainer.policy_version > 0:
            raise CheckpointError(
                f"{job.output_dir} has no checkpoint to go on from, and the weights are already trained; "
                "make a new trainer"
            )
        refuse_no_room(job.config, job.output_dir, job.parts.trainer.footprint(), total_steps=job.inputs.total_steps)
        aside = set_later_aside(run_dir, 0 if checkpoint is None else checkpoint.state.step)
        drop_broken_links(job.output_dir)
        changed = start.resumed and _computes_otherwise(run_dir, job.config)
        if changed:
            run_dir.discard_rollouts_after(0 if checkpoint is None else checkpoint.state.step)
        task_sampler = make_task_sampler(job.config, job.inputs, checkpoint)
        backend = OneProcess(config=job.config, parts=job.parts, task_sampler=task_sampler)
        run, found = make_run(job.config, job.inputs, backend, run_dir, checkpoint, observer=job.observer)
        closing.callback(run.journal.close)
        run_name = job.args.run_name or job.output_dir.name
        trackers = run_trackers(job.config, job.output_dir, run_name=run_name, notify=job.observer.notify)
        closing.callback(trackers.finish)
        run_dir.add_links(trackers.urls)
        state = _state(job, checkpoint)
        job.observer.start(run, state, trackers)
        closing.callback(job.observer.stop)
        paths = [*engine_sentences(job.parts.engine), *trainer_sentences(job.parts.trainer)]
        opening = run_sentences(job.config, job.inputs, paths, checkpoint)
        notify(
            run,
            [
                *start.damaged,
                *aside,
                *directory_sentences(run_dir, found),
                describe_plan(job.args, job.config),
                *job.notes,
                *opening,
            ],
        )
        _steps(run)
        return _end(job, run, seconds=time.perf_counter() - started)


def _computes_otherwise(run_dir: RunDir, config: Config) -> bool:
    """True if options differ from those behind rollouts that are already on disk."""
    old, new = build_config(parse_yaml((run_dir.path / "config.yaml").read_text(), "config.yaml")), config
    before, now = plain_options(old), plain_options(new)
    return any(changes_what_is_computed(one, now, before) for one in differences(before, now))


def _steps(run: Run) -> None:
    """Run all steps; a signal to stop ends the run after its step with a checkpoint, as on the command line.

    Raises:
        KeyboardInterrupt: that signal was Ctrl-C.
        SystemExit: it was SIGTERM.
    """
    stop = StopRequest(run.config.loop.stop_grace)
    # a thread of a program's own gets no signals
    with stop if threading.current_thread() is threading.main_thread() else nullcontext():
        try:
            run_steps(run, interrupted=lambda: stop.received is not None)
            if stop.received is None or run.stopping or run.state.step == run.inputs.total_steps:
                return
            save_last(run)
            how = f"{stop.received} after step {run.state.step}"
        except GraceOver as over:
            how = f"{over}; {last_checkpoint(run)}"
    notify(run, [f"{how}; train(resume_from_checkpoint=True) goes on"])
    if stop.received == signal.SIGTERM.name:
        raise SystemExit(128 + signal.SIGTERM)
    raise KeyboardInterrupt


def _state(job: TrainingJob, checkpoint: Checkpoint | None) -> TrainerState:
    """The trainer's own state object, as at the checkpoint or new: reward functions hold it too."""
    saved = None if checkpoint is None else read_state(checkpoint.path)
    state, updates = job.observer.state, updates_per_step(job.config)
    for field in fields(TrainerState):
        setattr(state, field.name, getattr(saved or TrainerState(), field.name))
    if checkpoint is not None:
        state.global_step = checkpoint.state.step * updates
        state.epoch = checkpoint.state.position / len(job.inputs.tasks.tasks)
    state.max_steps = job.inputs.total_steps * updates
    state.num_train_epochs = round(job.args.num_train_epochs)
    state.train_batch_size = job.args.train_batch_size
    state.compute_steps(job.args, state.max_steps)
    for name in ("logging_steps", "eval_steps", "save_steps"):
        every = int(getattr(state, name))
        # callbacks fire once per batch of rollouts: a number of updates in between would never be met
        setattr(state, name, -(-every // updates) * updates)
    return state


def _end(job: TrainingJob, run: Run, *, seconds: float) -> TrainOutput:
    observer, state, step = job.observer, job.observer.state, run.state.step
    if job.args.load_best_model_at_end and state.best_model_checkpoint is not None:
        best = read_checkpoint(Path(state.best_model_checkpoint))
        restore_weights(job.parts.trainer.policy, best.model)
        step = best.state.step
        notify(run, [f"the best model, of update {state.best_global_step}, is loaded ({state.best_model_checkpoint})"])
    losses = [record["loss"] for record in run.run_dir.metrics()]
    completions = sum(record["rollouts"] for record in run.run_dir.metrics())
    metrics: LogNumbers = {
        "train_runtime": round(seconds, 4),
        "train_samples_per_second": round(completions / seconds, 3),
        "train_steps_per_second": round(state.global_step / seconds, 3),
        "total_flos": state.total_flos,
        "train_loss": sum(losses) / len(losses) if losses else 0.0,
        "epoch": state.epoch,
    }
    observer.finish(metrics)
    finish(run, job.console, step=step)
    return TrainOutput(state.global_step, float(metrics["train_loss"] or 0.0), cast("dict[str, float]", metrics))


def describe_plan(args: GRPOConfig, config: Config) -> str:
    """TRL's counts beside ours, then all differences that the fields do not suggest."""
    return "\n".join([*_counts(args), *_length(args, config), *_notes(args, config)])


def _counts(args: GRPOConfig) -> Iterator[str]:
    batches, micro = batches_of(args), args.per_device_train_batch_size
    per_update = batches.completions_per_step // batches.num_minibatches
    yield (
        f"completions per update: {per_update} (TRL: per_device_train_batch_size {micro} * "
        f"gradient_accumulation_steps {args.gradient_accumulation_steps})"
    )
    yield f"prompts per update: {_number(per_update / group_size(args))} (num_generations {args.num_generations})"
    yield (
        f"updates per rollout batch: {batches.updates_per_step} = {batches.num_minibatches} part"
        f"{'s' if batches.num_minibatches > 1 else ''} * num_iterations {batches.num_iterations}"
    )
    yield (
        f"completions per rollout batch: {batches.completions_per_step} of {batches.prompts_per_step} prompts "
        f"(TRL: generation_batch_size {args.generation_batch_size}{_joined(args)})"
    )


def _joined(args: GRPOConfig) -> str:
    """Note on TRL's several generations per update, where an update is longer than a generation."""
    times = args.gradient_accumulation_steps // steps_per_generation(args)
    return f", {times} of them per update, sampled together here" if times > 1 else ""


def _length(args: GRPOConfig, config: Config) -> Iterator[str]:
    updates, steps = batches_of(args).updates_per_step, config.loop.max_steps
    if steps is None:
        yield f"length: {_number(config.loop.num_epochs)} epochs; global_step counts {updates} per rollout batch"
        return
    rounded = f", rounded up from max_steps {args.max_steps}" if steps * updates != args.max_steps else ""
    yield f"length: {steps} rollout batches, {steps * updates} updates (global_step){rounded}"


def _notes(args: GRPOConfig, config: Config) -> Iterator[str]:
    yield (
        f"micro-batches: cut by micro_batch_tokens {config.optim.micro_batch_tokens or '(by device)'}, not by count; "
        "averages are over the whole update, so the cut does not change the gradient"
    )
    if config.model.dtype == "bfloat16":
        yield "precision: computes in bfloat16, weights and optimiser state stay float32"
    if config.loss.bound == "cispo" and args.epsilon_high is None:
        yield (
            f"cispo: a ratio weighs at most {config.loss.cispo_max_ratio} (TRL would take epsilon, {args.epsilon}, and "
            "hold every weight there); epsilon_high sets it"
        )
    if args.push_to_hub:
        yield "push_to_hub: the model is uploaded once, when training ends (hub_strategy every_save does not say more)"
    accepted = accepted_without_effect(args)
    if accepted:
        yield accepted


def _number(value: float) -> str:
    return f"{value:g}"
