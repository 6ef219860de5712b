"""A model as the keywords of `from_pretrained` say: from a revision on the Hub, or in 4 bits of bitsandbytes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub import snapshot_download
from transformers import AutoModelForCausalLM, PreTrainedModel

from paceline.base_directory import local_path
from paceline.config.sections import ModelConfig
from paceline.errors import ConfigError, ModelError, first_line
from paceline.models.loading import check_loaded
from paceline.models.weight_headers import check_quantised
from paceline.runtime.devices import choose_device

FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.py")
"""What a model and its tokenizer are read from."""


def fetched(model: str, keywords: Mapping[str, Any]) -> str:
    """Directory of the model in the revision, cache or subfolder that keywords name; without any, `model` itself.

    None, False and the revision `main` say what is so anyway, and count as no keyword.

    ModelError: the Hub has no such revision, or cannot be reached.
    """
    given = {name: value for name, value in keywords.items() if value is not None and value is not False}
    given = {name: value for name, value in given.items() if (name, value) != ("revision", "main")}
    if not given:
        return model
    subfolder, place = str(given.pop("subfolder", "")), local_path(model)
    if given and not place.is_dir():
        try:
            place = Path(snapshot_download(model, allow_patterns=list(FILES), **given))
        except (OSError, ValueError) as error:
            said = ", ".join(f"{name} {value!r}" for name, value in given.items() if name != "token")
            raise ModelError(
                f"model {model!r} cannot be fetched with {said} ({type(error).__name__}: {first_line(error)}); look at "
                "the name and at the connection"
            ) from error
    return str(place / subfolder) if subfolder else str(place)


def check_quantization(quantization_config: Any, model: Any, *, adapted: bool, use_vllm: bool) -> None:
    """Refuse weights in fewer bits that cannot be trained on, before they are read (ConfigError, ModelError)."""
    if quantization_config is None:
        return
    if not isinstance(model, str):
        raise ConfigError("quantization_config must be None with a model object; load the object with it")
    if not hasattr(quantization_config, "to_dict"):
        raise ConfigError(
            f"quantization_config must be a BitsAndBytesConfig, got a {type(quantization_config).__name__}"
        )
    if use_vllm:
        raise ConfigError("use_vllm must be False with quantization_config, got True: vLLM takes weights in full")
    check_quantised({"quantization_config": quantization_config.to_dict()}, "the model", has_adapter=adapted)


def load_quantised(model: ModelConfig, quantization_config: Any) -> PreTrainedModel:
    """The model with its linear layers in fewer bits, the rest in float32, on the run's device.

    ModelError: a library for it is missing, or a weight cannot be read.
    """
    try:
        reader: Any = AutoModelForCausalLM  # its signature leaves out the report
        loaded, report = reader.from_pretrained(
            model.model,
            quantization_config=quantization_config,
            dtype=torch.float32,
            device_map={"": choose_device(model)},
            trust_remote_code=model.trust_remote_code,
            output_loading_info=True,
        )
    except (ImportError, OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"model {model.model!r} cannot be loaded with quantization_config ({type(error).__name__}: "
            f"{first_line(error)})"
        ) from error
    check_loaded(loaded, report, f"model {model.model!r}")
    return cast(PreTrainedModel, loaded)
