"""Locate a model's weights, adapter and config.json, without torch or transformers except for GGUF files."""

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.base_directory import local_path
from paceline.errors import ConfigError, ModelError, first_line
from paceline.models.gguf import gguf_file, unpacked

PACKAGE = Path(__file__).parent
DEFAULT = "embedded"
"""Default model of a command without a model or configuration file."""
DIRECTORIES: Mapping[str, str] = {
    "embedded": "embedded",
    "embedded-programs": "embedded/programs",
    "embedded-agent": "embedded/agent",
    "embedded-vision": "embedded/vision",
}
"""Names of the models that ship with the package, and their directories below `PACKAGE`."""
FINAL = "final"
"""Directory of the trained model in a run's directory."""
RECIPE = "recipe.yaml"
"""File with training options in each of these directories."""
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
TEXT_NAMES: Mapping[str, str] = {
    r"^language_model\.lm_head\.": "lm_head.",
    r"^language_model\.model\.": "model.",
    r"^model\.language_model\.": "model.",
    r"^model\.text_model\.": "model.",
}
"""Names of a language model's weights in a checkpoint that also reads images or sound, and its own names for them."""
GET_AGAIN = "get its files again where they are not whole"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPlace:
    """Location of a model."""

    base: str
    """Directory or Hub name of a whole model, as transformers loads it."""
    adapter: Path | None
    """Directory of an adapter of the model in peft's format."""


def model_place(name: str, *, needs_weights: bool = True) -> ModelPlace:
    """Locate the whole model that `name` stands for, and the adapter if `name` is the directory of one.

    Without `needs_weights`, a directory with only a config.json counts as a model. A GGUF file stands for the directory
    that it is unpacked into, which takes seconds the first time; a run's directory for the model that it trained.
    ModelError: `name` looks like a missing local path, or is a directory without a model.
    """
    name = _trained(name)
    adapter = local_path(name)
    if name in DIRECTORIES or not (adapter / ADAPTER_CONFIG).is_file():
        return ModelPlace(base=_whole_model(name, f"--model {name}", needs_weights), adapter=None)
    if needs_weights and not (adapter / ADAPTER_WEIGHTS).is_file():
        raise ModelError(f"--model {name} has no {ADAPTER_WEIGHTS}; convert its weights, pickle is not loaded")
    try:
        described = json.loads((adapter / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"--model {adapter}: its {ADAPTER_CONFIG} cannot be read: {first_line(error)}") from error
    base = described.get("base_model_name_or_path") if isinstance(described, dict) else None
    if not isinstance(base, str) or not base:
        raise ModelError(f"--model {adapter}: its {ADAPTER_CONFIG} names no base_model_name_or_path; write one into it")
    if (local_path(base) / ADAPTER_CONFIG).is_file():
        raise ModelError(f"--model {name} is an adapter for {base}, which is an adapter itself; merge that one first")
    base = _after_a_move(base, adapter)
    label = f"--model {name}: its base model {base}"
    return ModelPlace(base=_whole_model(base, label, needs_weights), adapter=adapter)


def _after_a_move(base: str, adapter: Path) -> str:
    """Return the path of an adapter's base model after the project of the adapter's run was moved, if it was."""
    run = adapter.resolve().parent
    if not Path(base).is_absolute() or Path(base).exists() or not (run / "identity.json").is_file():
        return base
    try:
        recorded = json.loads((run / "identity.json").read_text(encoding="utf-8"))["base"]
        moved = Path(os.path.normpath(run / recorded["relative"]), Path(base).relative_to(recorded["absolute"]))
    except (OSError, ValueError, KeyError, TypeError):
        return base
    return str(moved) if moved.is_dir() else base


def _trained(name: str) -> str:
    """Return the directory of a run's trained model if `name` is a run's directory, else `name`."""
    run = local_path(name)
    if name in DIRECTORIES or not (run / "config.yaml").is_file() or (run / "config.json").is_file():
        return name
    if not holds_model(run / FINAL):
        raise ModelError(
            f"--model {name} is a run's directory without {FINAL}/, as the run has not ended; "
            f"write the model of its newest checkpoint by `paceline export {name}`"
        )
    return str(run / FINAL)


def holds_model(folder: Path) -> bool:
    """Return True for a directory with a whole model or an adapter."""
    return any((folder / name).is_file() for name in ("config.json", ADAPTER_CONFIG))


def read_model_config(directory: Path, label: str) -> dict[str, Any]:
    """Read the config.json of a directory; ModelError if it is no JSON object."""
    try:
        described = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        described = None
    if not isinstance(described, dict):
        raise ModelError(f"{label}: its config.json is not a JSON object; restore it")
    return described


def positions_of(described: dict[str, Any]) -> int | None:
    """Return the largest number of positions of a model, None if its configuration does not say."""
    inner = described.get("text_config")
    limit = (inner if isinstance(inner, dict) else described).get("max_position_embeddings")
    return limit if isinstance(limit, int) else None


def check_completion_fits(completion: int, *, limit: int | None) -> None:
    """Refuse a completion length that leaves no room for any prompt, before anything is read."""
    if limit is not None and completion >= limit:
        raise ConfigError(
            f"--max-completion-length must be below the model's {limit} positions, got {completion}; "
            "leave room for prompts"
        )


def _whole_model(name: str, label: str, needs_weights: bool) -> str:
    """Return the directory or Hub name of a whole model; `label` is its name in messages."""
    if name in DIRECTORIES:
        return str(PACKAGE / DIRECTORIES[name])
    path = local_path(name)
    if (file := gguf_file(name)) is not None:
        return str(unpacked(file, label))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{label} is a directory without config.json; name one that transformers can load")
        if needs_weights and not list(path.glob("*.safetensors")):
            raise ModelError(f"{label} has no *.safetensors file; convert its weights, pickle is not loaded")
        return str(path)
    if path.is_file() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(
            f"{label} is not a directory; name a model directory, a .gguf file or a Hub name such as Qwen/Qwen3-0.6B"
        )
    first = name.split("/")[0]
    if "/" in name and Path(first).is_dir():  # the Hub would be asked for it
        raise ModelError(f"{label}: there is no {name.split('/', 1)[1]!r} in the directory {first!r}; check the name")
    near = difflib.get_close_matches(name.lower(), DIRECTORIES, n=1, cutoff=0.85)
    if near and "/" not in name:  # the Hub would be asked for it, several times where it cannot be reached
        raise ModelError(f"{label} is neither a directory nor a model of the package; did you mean {near[0]}?")
    return name
