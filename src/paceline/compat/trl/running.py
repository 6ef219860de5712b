"""A trainer's run around the loop: start, observer, best model, last numbers; TRL's counts beside ours."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import cast

from rich.console import Console
from transformers import TrainerState
from transformers.trainer_utils import TrainOutput

from paceline.checkpoints.finding import Checkpoint, read_checkpoint
from paceline.compat.trl.batches import batches_of, group_size, steps_per_generation
from paceline.compat.trl.callbacks import CallbackObserver, read_state
from paceline.compat.trl.checkpoints import drop_broken_links
from paceline.compat.trl.config import GRPOConfig
from paceline.compat.trl.fields import accepted_without_effect
from paceline.compat.trl.history import LogNumbers
from paceline.config.reading import options
from paceline.config.sections import Config
from paceline.errors import CheckpointError
from paceline.models.loading import restore_weights
from paceline.runtime.interrupts import GraceOver
from paceline.training.backend import OneProcess
from paceline.training.run import notify
from paceline.training.session import Session
from paceline.training.setup.run_inputs import RunInputs
from paceline.training.trainer import updates_per_step

MAY_CHANGE = frozenset(option.name for option in options()) - {"model", "dataset"}
"""A resumed run takes other arguments as they are, but trains no other model and on no other data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob:
    """Everything that a trainer's run needs."""

    args: GRPOConfig
    config: Config
    inputs: RunInputs
    backend: OneProcess
    notes: tuple[str, ...]
    """Sentences for the user before the first step."""
    observer: CallbackObserver
    console: Console
    is_stream: bool
    """The training rows have no length: more of them are read for more steps."""

    @property
    def output_dir(self) -> Path:
        """The run directory."""
        return Path(str(self.args.output_dir))


def run_training(job: TrainingJob, resume: Path | bool) -> TrainOutput:
    """Run all steps, load the best model if asked, write the final directory and the last numbers.

    A signal to stop ends the run after its step with a checkpoint, as on the command line.

    Raises:
        KeyboardInterrupt: that signal was Ctrl-C.
        SystemExit: it was SIGTERM.
    """
    started, observer = time.perf_counter(), job.observer
    override = MAY_CHANGE | {"dataset"} if job.is_stream else MAY_CHANGE
    with Session(job.config, job.inputs, job.output_dir, resume=resume, override=override) as session:
        drop_broken_links(job.output_dir)
        observer.state = _state(job, session.checkpoint)
        try:
            run = session.start(
                partial(_restored, job),
                observer,
                opening=[describe_plan(job.args, job.config), *job.notes],
                run_name=job.args.run_name,
            )
            try:
                interrupt = session.run_steps()
                how = f"{interrupt} after step {run.state.step}"
            except GraceOver as over:
                interrupt, how = session.signal, "; ".join(over.args)
            if interrupt is None:
                return _end(job, session, seconds=time.perf_counter() - started)
            notify(run, [f"{how}; train(resume_from_checkpoint=True) goes on"])
            if interrupt == signal.SIGTERM.name:
                raise SystemExit(128 + signal.SIGTERM)
            raise KeyboardInterrupt
        finally:
            observer.stop()


@contextmanager
def _restored(
    job: TrainingJob, config: Config, inputs: RunInputs, checkpoint: Checkpoint | None
) -> Iterator[OneProcess]:
    """The `BackendFactory` of a trainer, whose weights are loaded when it is made."""
    if checkpoint is not None:
        job.backend.restore(checkpoint)
    elif job.backend.policy_version > 0:
        raise CheckpointError(
            f"{job.output_dir} has no checkpoint to go on from, and the weights are already trained; make a new trainer"
        )
    yield job.backend


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


def _end(job: TrainingJob, session: Session, *, seconds: float) -> TrainOutput:
    run, observer, state = session.run, job.observer, job.observer.state
    step = run.state.step
    if job.args.load_best_model_at_end and state.best_model_checkpoint is not None:
        best = read_checkpoint(Path(state.best_model_checkpoint))
        restore_weights(job.backend.trainer.policy, best.model)
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
    session.finish(job.console, step=step)
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
            f"cispo: a ratio weighs at most {1 + config.loss.clip_eps_high} (TRL would take epsilon, {args.epsilon}, "
            "and hold every weight there); epsilon_high sets it"
        )
    if args.push_to_hub:
        yield "push_to_hub: the model is uploaded once, when training ends (hub_strategy every_save does not say more)"
    accepted = accepted_without_effect(args)
    if accepted:
        yield accepted


def _number(value: float) -> str:
    return f"{value:g}"
