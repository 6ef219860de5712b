"""A trained model on its way out: its card, and the Hub."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from paceline.api.config import GRPOConfig
from paceline.api.model_card import CardFacts, model_card
from paceline.api.objective import SOURCES
from paceline.api.refused import changed
from paceline.api.running import Job
from paceline.errors import ConfigError, ModelError

LIBRARIES = ("paceline", "torch", "transformers", "datasets")


def write_card(job: Job, folder: Path, *, name: str | None, dataset: str | None, tags: str | list[str] | None) -> None:
    """Write `README.md` into a folder."""
    state, is_adapter = job.observer.state, job.parts.consumer.policy.adapter is not None
    facts = CardFacts(
        name=name or job.output_dir.name,
        base_model=job.config.model.model,
        dataset=dataset,
        is_adapter=is_adapter,
        tags=[tags] if isinstance(tags, str) else tags or [],
        versions={library: version(library) for library in (*LIBRARIES, *(("peft",) if is_adapter else ()))},
        steps=state.global_step,
        results=_last_numbers(state.log_history),
        fields=_objective_fields(job.args),
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(model_card(job.config, facts), encoding="utf-8")


def upload(job: Job, message: str, card: Mapping[str, Any]) -> str:
    """Export the model with its card to `final/` and upload that; the address of the commit.

    Raises:
        ConfigError: an argument that no card has.
        ModelError: the Hub refused; the sentence holds its reason.
    """
    unknown = set(card) - {"model_name", "dataset_name", "tags"}
    if unknown:
        raise ConfigError(
            f"push_to_hub must not have {sorted(unknown)[0]!r}; it takes model_name, dataset_name and tags"
        )
    args, folder = job.args, job.output_dir / "final"
    job.parts.consumer.export(folder)
    write_card(job, folder, name=card.get("model_name"), dataset=card.get("dataset_name"), tags=card.get("tags"))
    api = HfApi(token=args.hub_token)
    try:
        place = api.create_repo(args.hub_model_id or job.output_dir.name, private=args.hub_private_repo, exist_ok=True)
        commit = api.upload_folder(
            repo_id=place.repo_id, folder_path=str(folder), commit_message=message, revision=args.hub_revision
        )
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ModelError(f"push_to_hub: {reason}; the model is in {folder}") from error
    return str(commit)


def _objective_fields(args: GRPOConfig) -> dict[str, object]:
    """Fields that decide the objective; under a preset that one and what was changed beside it."""
    names = dict.fromkeys(name for names in SOURCES.values() for name in names)
    if args.preset is None:
        return {name: getattr(args, name) for name in ("loss_type", *names)}
    return {"preset": args.preset, **{name: getattr(args, name) for name in names if changed(args, name)}}


def _last_numbers(history: list[dict[str, Any]]) -> dict[str, float]:
    """The newest value of the numbers that say whether it learned."""
    numbers = {name: value for line in history for name, value in line.items()}
    shown = ("reward", "eval_reward", "train_loss", "entropy", "kl")
    return {name: float(numbers[name]) for name in shown if isinstance(numbers.get(name), int | float)}
