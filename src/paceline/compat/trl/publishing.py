"""Publishing of a trained model: its card, and the Hub."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from transformers import TrainerState

from paceline.base_directory import local_path
from paceline.checkpoints.run_directory import RunDir
from paceline.compat.trl.building import TrainingJob
from paceline.compat.trl.objective import objective_fields
from paceline.compat.vocabulary import changed
from paceline.errors import ConfigError, ModelError, first_line
from paceline.models.places import FINAL
from paceline.reports.model_card import named
from paceline.training.card import card_facts, write_card
from paceline.training.trainer import updates_per_step

SHOWN = ("reward", "eval_reward", "train_loss", "entropy", "kl")
"""Metrics whose newest values show whether the run learned."""


def publish_card(job: TrainingJob, state: TrainerState, folder: Path, card: Mapping[str, Any]) -> Path:
    """Write the card with the trainer's own numbers; `card` may hold `model_name`, `dataset_name` and `tags`."""
    args, dataset, tags = job.args, card.get("dataset_name"), card.get("tags")
    chosen = args.load_best_model_at_end and state.best_model_checkpoint is not None
    updates = state.best_global_step if chosen else state.global_step
    step = (updates or 0) // updates_per_step(job.config)
    found = card_facts(RunDir(job.output_dir), job.config, folder, step=step)
    # fields that decide the objective; with a preset, the preset and the fields changed beside it
    names = objective_fields()
    if args.preset is None:
        objective = {name: getattr(args, name) for name in ("loss_type", *names)}
    else:
        objective = {"preset": args.preset, **{name: getattr(args, name) for name in names if changed(args, name)}}
    newest = {name: value for line in state.log_history for name, value in line.items()}
    facts = replace(
        found,
        name=card.get("model_name") or found.name,
        # the program's own object has no public name
        dataset=None if dataset is None else named(dataset, is_local=lambda path: local_path(path).exists()),
        is_adapter=job.trainer.policy.adapter is not None,
        prompting=replace(found.prompting, has_chat_template=job.inputs.tokenizer.chat_template is not None),
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
        place = api.create_repo(args.hub_model_id or job.output_dir.name, private=args.hub_private_repo, exist_ok=True)
        commit = api.upload_folder(
            repo_id=place.repo_id, folder_path=str(folder), commit_message=message, revision=args.hub_revision
        )
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelError(f"push_to_hub: {first_line(error)}; the model is in {folder}") from error
    return str(commit)
