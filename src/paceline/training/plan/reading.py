"""A model's shape from its config.json alone: of a directory, an adapter's base, or a name of the Hub."""

import math
from pathlib import Path

from paceline.errors import ModelError
from paceline.models.places import model_place, read_model_config
from paceline.models.weight_headers import read_header
from paceline.training.plan.shape import ModelShape, model_shape


def read_shape(model: str) -> ModelShape | None:
    """The shape of `--model`, None where its configuration names its numbers in another way or the Hub gives none.

    Parameters are counted in the headers of its weights, where they are here; else transformers makes the model without
    memory for them, which takes some seconds.

    Raises:
        ModelError: a directory has no config.json, or it or a file of weights cannot be read.
    """
    base = Path(model_place(model, needs_weights=False).base)
    directory = base if base.is_dir() else _fetched(str(base))
    if directory is None:
        return None
    described = read_model_config(directory, f"--model {model}")
    weights = sorted(directory.glob("*.safetensors"))
    counted = sum(map(_count_parameters, weights)) if weights else _count_without_weights(directory, model)
    return model_shape(described, parameters=counted)


def _fetched(name: str) -> Path | None:
    """Where the Hub's config.json lies on this machine; None: there is no such name, or no way to the Hub."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(hf_hub_download(name, "config.json")).parent
    except (HfHubHTTPError, HFValidationError, OSError):
        return None


def _count_without_weights(directory: Path, model: str) -> int:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        with torch.device("meta"):
            return int(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory)).num_parameters())
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        said = " ".join(str(error).split())[:160]
        raise ModelError(f"--model {model}: transformers makes no model of its config.json ({said})") from None


def _count_parameters(file: Path) -> int:
    return sum(map(math.prod, read_header(file, f"--model {file.parent}").shapes.values()))
