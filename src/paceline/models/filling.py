"""Weights from files into a model that has none yet, or only a rank's part of them: each reads its own and no more."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.utils.hub import cached_file

from paceline.errors import ModelError, first_line
from paceline.models.model_files import PIECES
from paceline.models.parallel.pieces import files_of, open_stored, saved_tensors
from paceline.models.weight_headers import INDEX, WHOLE, shard_names

UNREADABLE = (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError)
"""What libraries raise for a directory that holds no model, or a damaged one."""


def weight_files(place: str) -> list[Path]:
    """The files with the weights of a directory or a Hub name: as transformers writes them, or pieces.

    Raises:
        OSError, ValueError, KeyError: there are none.
    """
    if is_in_pieces(Path(place)):
        return files_of(Path(place), PIECES)
    with contextlib.suppress(OSError):  # then there are several
        return [_file(place, WHOLE)]
    return [_file(place, name) for name in shard_names(_file(place, INDEX))]


def _file(place: str, name: str) -> Path:
    return Path(cast(str, cached_file(place, name)))  # it raises where there is none


def is_in_pieces(directory: Path) -> bool:
    """Return whether no rank that wrote it had all of the model."""
    return next(directory.glob(f"{PIECES}*.safetensors"), None) is not None


def skeleton(place: str, *, trust_remote_code: bool) -> PreTrainedModel:
    """The model of a directory or a Hub name in float32, all of it on `meta`: shapes without memory.

    Raises:
        OSError, ValueError, KeyError: its config.json cannot be loaded.
    """
    config = AutoConfig.from_pretrained(place, trust_remote_code=trust_remote_code)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, trust_remote_code=trust_remote_code
        )
    with contextlib.suppress(OSError):  # without one it is as the model's configuration says
        model.generation_config = GenerationConfig.from_pretrained(place)
    model.eval()
    return model


def give_memory(model: PreTrainedModel, device: torch.device) -> None:
    """Memory on `device` for what is on `meta`, parts of a split model as large as they are; weights stay undefined.

    Buffers that no file has, such as rotary frequencies, are computed.
    """
    twice = dict[int, list[tuple[nn.Module, str]]]()
    for module in model.modules():
        for name, parameter in module._parameters.items():
            twice.setdefault(id(parameter), []).append((module, name))
    model.to_empty(device=device)
    for (first, name), *others in twice.values():
        for module, other in others:  # a matrix in two places is two by now, unless it lies in slices
            setattr(module, other, getattr(first, name))
    with torch.no_grad():
        for module in model.modules():
            if module._non_persistent_buffers_set:
                model._init_weights(module)


def fill(model: PreTrainedModel, files: Sequence[Path]) -> None:
    """Read what is on this rank of every weight and buffer of a model, which may be split, from files in any layout.

    Raises:
        OSError, SafetensorError, ValueError, KeyError: a file cannot be read, or they are another model's.
    """
    with open_stored(files) as stored:
        stored.fill(model)


def has_all(model: PreTrainedModel, files: Sequence[Path]) -> bool:
    """Return whether files have tensors by the very names that a model, or a rank's part of one, has them under.

    Raises:
        OSError, SafetensorError, ValueError, KeyError: a file cannot be read.
    """
    with open_stored(files) as stored:
        return set(saved_tensors(model)) <= set(stored.names())


def assembled(directory: Path, *, trust_remote_code: bool) -> PreTrainedModel:
    """The whole model of a directory of pieces, in main memory.

    Raises:
        ModelError: a piece is missing or cannot be read.
    """
    try:
        model = skeleton(str(directory), trust_remote_code=trust_remote_code)
        give_memory(model, torch.device("cpu"))
        fill(model, weight_files(str(directory)))
    except UNREADABLE as error:
        raise ModelError(f"{directory} cannot be put together: {first_line(error)}") from error
    return model
