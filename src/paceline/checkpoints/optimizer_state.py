"""Optimiser state and weights of a moving reference: to files by parameter name, and back."""

import json
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from paceline.checkpoints.finding import Checkpoint
from paceline.errors import CheckpointError
from paceline.models.parallel.pieces import Part, Stored, files_of, open_stored, part_of, saved_tensors
from paceline.models.parallel.ranks import ONE_RANK, Ranks

OTHER_OPTIMIZER = ("use another optimiser", "--save-steps 0")
_UNREADABLE = (OSError, SafetensorError, KeyError, TypeError, ValueError)


def optimizer_part(optimizer: torch.optim.Optimizer, model: PreTrainedModel, ranks: Ranks) -> Part:
    """Return this rank's part of the optimiser state; all ranks make this call.

    CheckpointError: the optimiser keeps something else than tensors and numbers for each of the model's parameters.
    """
    names, parameters = _names(model), _parameters(optimizer)
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, float] = {}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            label = f"{key}.{_name(parameter, names)}"
            if isinstance(value, Tensor) and not _lies_alike(value, parameter):
                raise CheckpointError(
                    f"{type(optimizer).__name__} keeps {key!r} in a shape of its own for slices of parameters, which "
                    "no other number of ranks could take up",
                    remedies=OTHER_OPTIMIZER,
                )
            if isinstance(value, Tensor) and "." not in key:
                tensors[label] = value
            elif isinstance(value, int | float) and "." not in key:
                numbers[label] = value
            else:
                raise CheckpointError(
                    f"{type(optimizer).__name__} keeps {key!r} as a {type(value).__name__} for each parameter, a "
                    "checkpoint holds tensors and numbers only",
                    remedies=OTHER_OPTIMIZER,
                )
    shapes = {_name(parameter, names): list(parameter.shape) for parameter in parameters}
    everywhere = {"numbers": _merged(ranks, numbers), "shapes": _merged(ranks, shapes)}
    header = {"kind": type(optimizer).__name__} | {key: json.dumps(value) for key, value in everywhere.items()}
    return part_of("optimizer", tensors, ranks, header)


def load_optimizer(
    checkpoint: Checkpoint, optimizer: torch.optim.Optimizer, model: PreTrainedModel, ranks: Ranks = ONE_RANK
) -> None:
    """Load the saved state into `optimizer`, whose parameters are `model`'s; its learning rates stay.

    Each of the `ranks`, all of which make this call, reads what belongs to its part of the model. CheckpointError: the
    file cannot be read, or belongs to another model or optimiser.
    """
    path, names, parameters = checkpoint.path / "optimizer.safetensors", _names(model), _parameters(optimizer)
    present = {_name(parameter, names): parameter for parameter in parameters}
    everywhere = _merged(ranks, {name: list(parameter.shape) for name, parameter in present.items()})
    try:
        with open_stored(files_of(checkpoint.path, "optimizer")) as stored:
            header = stored.headers[0]
            kind, shapes = header["kind"], json.loads(header["shapes"])
            if kind != type(optimizer).__name__:
                raise CheckpointError(
                    f"{path} holds the state of {kind}, the run has {type(optimizer).__name__}; "
                    "give the --optimizer and --offload that it was saved with"
                )
            for name in [*everywhere, *shapes]:
                if (name in everywhere and everywhere[name]) != (name in shapes and shapes[name]):
                    raise CheckpointError(f"{path} holds no matching state for parameter {name}; it is another model's")
            states = _read_states(stored, present)
    except _UNREADABLE as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    by_index = {index: states[name] for index, name in enumerate(present) if name in states}
    optimizer.load_state_dict({"state": by_index, "param_groups": optimizer.state_dict()["param_groups"]})
    for index, saved in by_index.items():  # torch converts what it loads to the parameter's precision
        state = optimizer.state[parameters[index]]
        for key, value in saved.items():
            if isinstance(value, Tensor) and state[key].dtype != value.dtype:
                state[key] = value.to(state[key].device)


def load_reference_weights(checkpoint: Checkpoint, reference: PreTrainedModel) -> None:
    """Load a moving reference's weights, this rank's part; CheckpointError if unreadable or another model's."""
    try:
        with open_stored(files_of(checkpoint.path, "reference")) as stored:
            stored.fill(reference)
    except _UNREADABLE as error:
        reason = str(error).strip().split("\n")[-1].strip()
        path = checkpoint.path / "reference.safetensors"
        raise CheckpointError(f"{path} cannot be read into the reference model: {reason}") from error


def _read_states(stored: Stored, present: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor | float]]:
    """Read the state of each parameter of this rank; tensors of its shape are sharded like it, others are whole."""
    states: dict[str, dict[str, Tensor | float]] = {}
    for label in stored.names():
        key, _, name = label.partition(".")
        if name not in present:
            continue
        parameter = present[name]
        if isinstance(parameter, DTensor) and stored.shape(label) == tuple(parameter.shape):
            local = stored.read_piece(label, parameter).to(parameter.device)
            mesh_layout = (parameter.device_mesh, parameter.placements)
            shape, stride = parameter.shape, parameter.stride()
            value: Tensor = DTensor.from_local(local, *mesh_layout, run_check=False, shape=shape, stride=stride)
        else:
            value = stored.read(label)
        states.setdefault(name, {})[key] = value
    for label, value in json.loads(stored.headers[0]["numbers"]).items():
        key, _, name = label.partition(".")
        if name in present:
            states.setdefault(name, {})[key] = value
    return states


def _lies_alike(value: Tensor, parameter: Tensor) -> bool:
    """Return True if a state is sharded like its parameter, or is one number that all ranks know."""
    if not isinstance(parameter, DTensor):
        return not isinstance(value, DTensor)
    return value.numel() == 1 or (isinstance(value, DTensor) and value.shape == parameter.shape)


def _merged(ranks: Ranks, local: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for text in ranks.all_gather_text(json.dumps(dict(local)))
        for name, value in json.loads(text).items()
    }


def _names(model: PreTrainedModel) -> dict[int, str]:
    """Return names in the whole model by the parameters' identity."""
    return {id(tensor): name for name, tensor in saved_tensors(model).items()}


def _name(parameter: object, names: Mapping[int, str]) -> str:
    if id(parameter) not in names:
        raise CheckpointError("the optimiser keeps state that is not a parameter's of the model; it cannot be saved")
    return names[id(parameter)]


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
