"""A trainer's run around the loop: its start, its steps, its end."""

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from transformers import TrainerState
from transformers.trainer_utils import TrainOutput

from paceline.base_directory import local_path
from paceline.checkpoints.finding import Checkpoint
from paceline.checkpoints.run_directory import RunDir
from paceline.compat.trl.batches import describe_plan
from paceline.compat.trl.building import TrainingJob
from paceline.compat.trl.fields import in_field_names
from paceline.compat.trl.observer import CallbackObserver
from paceline.compat.trl.translation import objective_fields
from paceline.compat.vocabulary import changed
from paceline.config.reading import options
from paceline.config.sections import Config
from paceline.errors import CheckpointError, ConfigError, ModelError, first_line
from paceline.models.places import FINAL
from paceline.reports.model_card import named
from paceline.runtime.interrupts import GraceOver
from paceline.training.backend import OneProcess
from paceline.training.card import card_facts, write_card
from paceline.training.run import notify
from paceline.training.session import RunSession
from paceline.training.setup.inputs import RunInputs
from paceline.training.setup.named_code import allow_named_code
from paceline.training.setup.run_request import RunRequest, Wording
from paceline.training.trainer import updates_per_step
from paceline.workers.backend import WorkerBackend

MAY_CHANGE = frozenset(option.name for option in options()) - {"model"}
"""A resumed run takes other arguments and other rows, which it says and notes, but trains no other model."""

WORDING = Wording(resume=lambda _: "train(resume_from_checkpoint=True)", reword=in_field_names)


def run_training(job: TrainingJob, observer: CallbackObserver, resume: Path | bool, *, before: str = "") -> TrainOutput:
    """Run all steps, load the best model if asked, write the final directory and the last numbers.

    `before` is a sentence on the trainer's earlier run, if this one starts from its weights. A signal to stop ends the
    run after its step with a checkpoint: KeyboardInterrupt of Ctrl-C, SystemExit of SIGTERM.
    """
    started = time.perf_counter()
    named = Path(str(job.args.output_dir))
    request = RunRequest(
        config=job.config, output_dir=job.output_dir, named=named, base=job.base, resume=resume, override=MAY_CHANGE
    )
    allow_named_code(job.config, None, {}, output_dir=job.output_dir)
    with RunSession(request, job.inputs, WORDING) as session:
        observer.restore(session.checkpoint)
        try:
            run = session.start(
                partial(_restored, job, goes_on=bool(before)),
                observer,
                opening=[describe_plan(job.args, job.config), *job.notes, *filter(None, [before])],
                run_name=job.args.run_name,
            )
            try:
                interrupt = session.run_steps()
                how = f"{interrupt} after step {run.state.step}"
            except GraceOver as over:
                interrupt, how = session.signal, "; ".join(over.args)
            if interrupt is None:
                return observer.finish(session, seconds=time.perf_counter() - started)
            notify(run, [f"{how}; {WORDING.resume(job.output_dir)} goes on"])
            if interrupt == signal.SIGTERM.name:
                raise SystemExit(128 + signal.SIGTERM)
            raise KeyboardInterrupt(how)
        finally:
            observer.stop()


@contextmanager
def _restored(
    job: TrainingJob, config: Config, inputs: RunInputs, checkpoint: Checkpoint | None, *, goes_on: bool
) -> Iterator[OneProcess | WorkerBackend]:
    """The `BackendFactory` of a trainer, whose weights are loaded when it is made."""
    if checkpoint is not None:
        version, updates = checkpoint.state.policy_version, checkpoint.state.step * updates_per_step(config)
        if not job.makes_scheduler and version > updates:
            raise CheckpointError(
                f"{checkpoint.path} is of weights with {version} updates, {updates} of them this run's, and the state "
                "of the program's own scheduler after those before is not known; start a new run from its weights with "
                f"model={str(checkpoint.model)!r}, or leave the scheduler in optimizers out"
            )
        job.backend.restore(checkpoint)
    elif job.backend.policy_version > 0 and not goes_on:
        raise CheckpointError(
            f"{job.output_dir} has no checkpoint to go on from, and the weights are already trained; make a new trainer"
        )
    yield job.backend


SHOWN = ("reward", "eval_reward", "train_loss", "entropy", "kl")
"""Metrics whose newest values show whether the run learned."""


def publish_card(job: TrainingJob, state: TrainerState, folder: Path, card: Mapping[str, Any]) -> Path:
    """Write the card with the trainer's own numbers; `card` may hold `model_name`, `dataset_name` and `tags`."""
    args, dataset, tags = job.args, card.get("dataset_name"), card.get("tags")
    chosen = args.load_best_model_at_end and state.best_model_checkpoint is not None
    updates = state.best_global_step if chosen else state.global_step
    step = (updates or 0) // updates_per_step(job.config)
    recorded = card_facts(RunDir(job.output_dir), job.config, folder, step=step)
    # fields that decide the objective; with a preset, the preset and the fields changed beside it
    names = objective_fields()
    if args.preset is None:
        objective = {name: getattr(args, name) for name in ("loss_type", *names)}
    else:
        objective = {"preset": args.preset, **{name: getattr(args, name) for name in names if changed(args, name)}}
    newest = {name: value for line in state.log_history for name, value in line.items()}
    facts = replace(
        recorded,
        name=card.get("model_name") or recorded.name,
        # the program's own object has no public name
        dataset=None if dataset is None else named(dataset, is_local=lambda path: local_path(path).exists()),
        is_adapter=job.trainer.policy.adapter is not None,
        prompting=replace(recorded.prompting, has_chat_template=job.inputs.tokenizer.chat_template is not None),
        tags=tuple([tags] if isinstance(tags, str) else tags or []),
        numbers={name: float(newest[name]) for name in SHOWN if isinstance(newest.get(name), int | float)},
        fields=objective,
    )
    folder.mkdir(parents=True, exist_ok=True)
    return write_card(facts, folder)


def upload(job: TrainingJob, state: TrainerState, message: str, card: Mapping[str, Any]) -> str:
    """Export the model with its card to `final/` and upload it; returns the commit's address (ModelError: refused)."""
    unknown = set(card) - {"model_name", "dataset_name", "tags"}
    if unknown:
        raise ConfigError(
            f"push_to_hub must not have {sorted(unknown)[0]!r}; it takes model_name, dataset_name and tags"
        )
    args, folder = job.args, job.output_dir / FINAL
    job.export(folder)
    publish_card(job, state, folder, card)
    api = HfApi(token=args.hub_token)
    try:
        repository = api.create_repo(
            args.hub_model_id or job.output_dir.name, private=args.hub_private_repo, exist_ok=True
        )
        commit = api.upload_folder(
            repo_id=repository.repo_id, folder_path=str(folder), commit_message=message, revision=args.hub_revision
        )
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelError(f"push_to_hub: {first_line(error)}; the model is in {folder}") from error
    return str(commit)
