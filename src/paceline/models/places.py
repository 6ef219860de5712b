"""Where a model lies: its weights, an adapter on top of them, its tokenizer. Settled before weights are read."""

import json
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from paceline.config import ModelConfig
from paceline.embedded_models import DIRECTORIES
from paceline.errors import ModelError
from paceline.models.adapter_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS

PACKAGE = Path(__file__).parent.parent


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPlace:
    """What a model's name stands for."""

    base: str
    """Directory or Hub name of a whole model, as transformers takes it."""
    adapter: Path | None
    """Directory of an adapter in peft's format that belongs on it."""


def model_place(name: str) -> ModelPlace:
    """The whole model that `name` stands for, and the adapter where `name` is the directory of one.

    Raises:
        ModelError: `name` looks like a local path that is not there, or a directory without a model.
    """
    adapter = Path(name).expanduser()
    if name in DIRECTORIES or not (adapter / ADAPTER_CONFIG).is_file():
        return ModelPlace(base=_whole_model(name, f"--model {name}"), adapter=None)
    if not (adapter / ADAPTER_WEIGHTS).is_file():
        raise ModelError(f"--model {name} has no {ADAPTER_WEIGHTS}; convert its weights, pickle is not loaded")
    base = _base_of(adapter)
    if (Path(base).expanduser() / ADAPTER_CONFIG).is_file():
        raise ModelError(f"--model {name} is an adapter for {base}, which is an adapter itself; merge that one first")
    return ModelPlace(base=_whole_model(base, f"--model {name}: its base model {base}"), adapter=adapter)


def model_directory(name: str) -> str:
    """The place that transformers loads the whole model `name` from: the package's own for an embedded one."""
    return model_place(name).base


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """The model's tokenizer: the adapter's own where its directory has one, else the base model's.

    Raises:
        ModelError: there is none, or it cannot be read.
    """
    place = model_place(config.model)
    own = place.adapter is not None and (place.adapter / "tokenizer_config.json").is_file()
    try:
        return AutoTokenizer.from_pretrained(
            str(place.adapter) if own else place.base, trust_remote_code=config.trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"--model {config.model}: its tokenizer cannot be loaded ({type(error).__name__}: {first_line(error)}); "
            "get its files again where they are not whole"
        ) from error


def context_length(config: ModelConfig) -> int | None:
    """Positions that the model can tell apart, None where its configuration does not say. Reads no weights."""
    place = model_directory(config.model)
    try:
        loaded = AutoConfig.from_pretrained(place, trust_remote_code=config.trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        own_code = "custom code" in str(error) and not config.trust_remote_code
        remedy = "; read that code, then give --trust-remote-code to run it" if own_code else ""
        raise ModelError(
            f"--model {config.model}: its config.json cannot be loaded: {first_line(error)}{remedy}"
        ) from error
    return getattr(loaded.get_text_config(), "max_position_embeddings", None)


def vocabulary_size(config: ModelConfig) -> int | None:
    """Tokens that the model has weights for, None where its configuration does not say. Reads no weights."""
    loaded = AutoConfig.from_pretrained(model_directory(config.model), trust_remote_code=config.trust_remote_code)
    return getattr(loaded.get_text_config(), "vocab_size", None)


def first_line(error: Exception) -> str:
    """The sentence of a library's error, without what it prints below."""
    return str(error).strip().split("\n")[0]


def _whole_model(name: str, label: str) -> str:
    """`label` is how messages call the model."""
    if name in DIRECTORIES:
        return str(PACKAGE / DIRECTORIES[name])
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{label} is a directory without config.json; name one that transformers can load")
        if not list(path.glob("*.safetensors")):
            raise ModelError(f"{label} has no *.safetensors file; convert its weights, pickle is not loaded")
        return str(path)
    if path.is_file() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(f"{label} is not a directory; name a model directory or a Hub name such as Qwen/Qwen3-0.6B")
    return name


def _base_of(adapter: Path) -> str:
    """The base model that an adapter's configuration names."""
    try:
        described = json.loads((adapter / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"--model {adapter}: its {ADAPTER_CONFIG} cannot be read: {first_line(error)}") from error
    base = described.get("base_model_name_or_path") if isinstance(described, dict) else None
    if not isinstance(base, str) or not base:
        raise ModelError(f"--model {adapter}: its {ADAPTER_CONFIG} names no base_model_name_or_path; write one into it")
    return base
