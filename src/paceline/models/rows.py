"""Tensors of micro-batches: on the model's device, and rows by their numbers, with a gradient that is the same again.

M rows, of which some are taken, in any shape.
"""

from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from paceline.objective.micro_batches import MicroBatch, PaddedAttention, PaddedRows

TensorRecord = TypeVar("TensorRecord", MicroBatch, PaddedAttention, PaddedRows)


def on_device(record: TensorRecord, device: torch.device) -> TensorRecord:
    """The record with its tensors on `device`."""
    if device.type == "cpu":
        return record
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    moved: dict[str, Any] = {
        name: value.to(device, non_blocking=True) for name, value in values.items() if isinstance(value, Tensor)
    }
    return replace(record, **moved)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy from pinned memory: from any other, a copy waits for all that the device has been given to do."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def take_rows(states: Float[Tensor, "M ..."], rows: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """`states[rows]`, whose backward pass adds up what comes back for a row that was taken often in one order.

    torch's indexing does so on a GPU. On a CPU its threads add as they come, so that two runs on a busy machine differ
    by rounding, and it takes twice as long; the gradient of `index_select` is one loop there, and atomic on a GPU.
    """
    if states.is_cuda:
        return states[rows]
    taken: Tensor = states.index_select(0, rows.flatten()).unflatten(0, rows.shape)
    return taken
