"""A trainer's run around the loop: start, observer, best model, last numbers; TRL's counts beside ours."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import cast

from transformers import TrainerState
from transformers.trainer_utils import TrainOutput

from paceline.checkpoints.finding import Checkpoint, read_checkpoint
from paceline.compat.trl.batches import batches_of
from paceline.compat.trl.building import TrainingJob
from paceline.compat.trl.callbacks import CallbackObserver
from paceline.compat.trl.checkpoints import STATE_FILE, drop_broken_links
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


def run_training(job: TrainingJob, observer: CallbackObserver, resume: Path | bool) -> TrainOutput:
    """Run all steps, load the best model if asked, write the final directory and the last numbers.

    A signal to stop ends the run after its step with a checkpoint, as on the command line.

    Raises:
        KeyboardInterrupt: that signal was Ctrl-C.
        SystemExit: it was SIGTERM.
    """
    started = time.perf_counter()
    override = MAY_CHANGE | {"dataset"} if job.is_stream else MAY_CHANGE
    with Session(job.config, job.inputs, job.output_dir, resume=resume, override=override) as session:
        drop_broken_links(job.output_dir)
        _set_state(observer.state, job, session.checkpoint)
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
                return _end(job, observer, session, seconds=time.perf_counter() - started)
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


def _set_state(state: TrainerState, job: TrainingJob, checkpoint: Checkpoint | None) -> None:
    """Set the trainer's own state object, which reward functions hold too, as at the checkpoint or new."""
    saved, updates = TrainerState(), updates_per_step(job.config)
    # a run that is killed between a checkpoint and the state beside it has none
    if checkpoint is not None and (checkpoint.path / STATE_FILE).is_file():
        saved = TrainerState.load_from_json(str(checkpoint.path / STATE_FILE))
    for field in fields(TrainerState):
        setattr(state, field.name, getattr(saved, field.name))
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


def _end(job: TrainingJob, observer: CallbackObserver, session: Session, *, seconds: float) -> TrainOutput:
    run, state = session.run, observer.state
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
    session.finish(observer.console, step=step)
    return TrainOutput(state.global_step, float(metrics["train_loss"] or 0.0), cast("dict[str, float]", metrics))


def describe_plan(args: GRPOConfig, config: Config) -> str:
    """TRL's counts beside ours, then all differences that the fields do not suggest."""
    batches, steps = batches_of(args), config.loop.max_steps
    updates = batches.updates_per_step
    per_update = batches.completions_per_step // batches.num_minibatches
    times = batches.generations_per_update
    joined = f", {times} of them per update, sampled together here" if times > 1 else ""
    lines = [
        f"completions per update: {per_update} (TRL: per_device_train_batch_size {args.per_device_train_batch_size} * "
        f"gradient_accumulation_steps {args.gradient_accumulation_steps})",
        f"prompts per update: {per_update / batches.num_generations:g} (num_generations {args.num_generations})",
        f"updates per rollout batch: {updates} = {batches.num_minibatches} part"
        f"{'s' if batches.num_minibatches > 1 else ''} * num_iterations {args.num_iterations}",
        f"completions per rollout batch: {batches.completions_per_step} of {batches.prompts_per_step} prompts "
        f"(TRL: generation_batch_size {args.generation_batch_size}{joined})",
    ]
    if steps is None:
        lines.append(f"length: {config.loop.num_epochs:g} epochs; global_step counts {updates} per rollout batch")
    else:
        rounded = f", rounded up from max_steps {args.max_steps}" if steps * updates != args.max_steps else ""
        lines.append(f"length: {steps} rollout batches, {steps * updates} updates (global_step){rounded}")
    lines.append(
        f"micro-batches: cut by micro_batch_tokens {config.optim.micro_batch_tokens or '(by device)'}, not by count; "
        "averages are over the whole update, so the cut does not change the gradient"
    )
    if config.model.dtype == "bfloat16":
        lines.append("precision: computes in bfloat16, weights and optimiser state stay float32")
    if config.loss.bound == "cispo" and args.epsilon_high is None:
        lines.append(
            f"cispo: a ratio weighs at most {1 + config.loss.clip_eps_high} (TRL would take epsilon, {args.epsilon}, "
            "and hold every weight there); epsilon_high sets it"
        )
    if args.push_to_hub:
        lines.append(
            "push_to_hub: the model is uploaded once, when training ends (hub_strategy every_save does not say more)"
        )
    accepted = accepted_without_effect(args)
    return "\n".join([*lines, accepted] if accepted else lines)
