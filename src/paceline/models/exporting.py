"""Directories that transformers or peft load."""

import copy
import json
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from paceline.errors import ModelError
from paceline.models.loaded import Loaded


def export_model(loaded: Loaded, tokenizer: PreTrainedTokenizerBase, path: Path, *, merge: bool) -> None:
    """Write the model with its tokenizer: whole and in its precision, or the adapter alone in float32.

    Args:
        loaded: the model; its weights are not changed.
        tokenizer: written beside the weights.
        path: the directory, made where it is not there.
        merge: add an adapter to the weights and write the whole model. Takes the memory of a second model meanwhile.

    Raises:
        ModelError: the adapter is of a kind that cannot be merged.
    """
    if loaded.adapter is None:
        save_model(loaded.model, tokenizer, path, _precision(loaded))
    elif merge:
        save_model(_merged(loaded), tokenizer, path, _precision(loaded))
    else:
        loaded.save_weights(path)
        tokenizer.save_pretrained(path)


def _precision(loaded: Loaded) -> torch.dtype:
    """On a CPU the weights' own: a small update would vanish in bfloat16, and whoever loads them may convert them."""
    return loaded.compute_dtype if loaded.model.device.type == "cuda" else loaded.model.dtype


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path, dtype: torch.dtype) -> None:
    """Write a directory that `transformers` loads, weights in `dtype`, which is also what config.json says."""
    state = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    model.save_pretrained(path, state_dict=state)
    config = json.loads((path / "config.json").read_text())
    config["dtype"] = str(dtype).removeprefix("torch.")
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer.save_pretrained(path)


def _merged(loaded: Loaded) -> PreTrainedModel:
    """A copy with the adapter in its weights: merging in place and back again would leave rounding behind."""
    twin = copy.deepcopy(loaded.adapter)
    assert twin is not None  # the caller asked
    try:
        return twin.merge_and_unload()
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        kind = twin.peft_config[twin.active_adapter].peft_type.value
        raise ModelError(
            f"an adapter of the kind {kind} cannot be merged ({error}); write it without merging"
        ) from error
