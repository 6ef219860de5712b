"""Directories that transformers or peft load."""

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from paceline.errors import ModelError
from paceline.models.loaded import Loaded
from paceline.models.parallel.gathering import full_tensors
from paceline.models.parallel.ranks import ONE_RANK, Ranks


def export_model(
    loaded: Loaded,
    tokenizer: PreTrainedTokenizerBase,
    path: Path,
    *,
    merge: bool,
    ranks: Ranks = ONE_RANK,
    dtype: torch.dtype | None = None,
) -> None:
    """Write the model with its tokenizer: whole and in its precision, or the adapter alone in float32.

    The first of the `ranks`, all of which make this call, writes it, and has all of it in main memory meanwhile.

    Args:
        merge: add an adapter to the weights and write the whole model. Takes the memory of a second model meanwhile.
        ranks: those that the model lies on; one, where an adapter is merged.
        dtype: the precision of a whole model; None: on CUDA the one that it computes in, else its own.

    Raises:
        ModelError: the adapter is of a kind that cannot be merged.
    """
    # on a CPU the weights' own: a small update would vanish in bfloat16, and whoever loads them may convert them
    dtype = dtype or (loaded.compute_dtype if loaded.model.device.type == "cuda" else loaded.model.dtype)
    if loaded.adapter is None:
        is_split = ranks.size > 1
        state = {name: one.to("cpu", dtype) for name, one in full_tensors(loaded.model, ranks)} if is_split else None
    elif merge:
        loaded, state = replace(loaded, model=_merged(loaded), adapter=None), None
    else:
        writer = loaded.weights_writer(ranks)
        if ranks.rank == 0:
            writer.write(path)
            tokenizer.save_pretrained(path)
        return
    if ranks.rank == 0:
        save_model(loaded.model, tokenizer, path, dtype, state)


def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    path: Path,
    dtype: torch.dtype,
    state: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a directory that `transformers` loads, weights in `dtype`, which is also what config.json says.

    `state`: the whole model's tensors where `model` is only a part of it.
    """
    state = state or model.state_dict(keep_vars=True)
    # by identity: a tied matrix, one tensor under two names, stays one and is written once
    converted = {id(tensor): tensor.detach().to(dtype) for tensor in state.values()}
    model.save_pretrained(path, state_dict={name: converted[id(tensor)] for name, tensor in state.items()})
    config = json.loads((path / "config.json").read_text())
    config["dtype"] = str(dtype).removeprefix("torch.")
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer.save_pretrained(path)


def _merged(loaded: Loaded) -> PreTrainedModel:
    """A copy with the adapter in its weights: merging in place and back again would leave rounding behind."""
    if getattr(loaded.model, "is_quantized", False):
        raise ModelError(
            "an adapter cannot be merged into quantised weights, which would round it; write it without merging"
        )
    twin = copy.deepcopy(loaded.adapter)
    assert twin is not None  # the caller asked
    try:
        merged: PreTrainedModel = twin.merge_and_unload()
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        kind = cast(Enum, twin.peft_config[twin.active_adapter].peft_type).value
        raise ModelError(
            f"an adapter of the kind {kind} cannot be merged ({error}); write it without merging"
        ) from error
    return merged
