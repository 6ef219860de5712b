"""Tensors of micro-batches: moved to the model's device, and indexed by row with a reproducible gradient.

M rows, of which some are taken, in any shape.
"""

from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from paceline.kernels.states import StateTable
from paceline.objective.micro_batches import MicroBatch, PaddedAttention, PaddedRows

TensorRecord = TypeVar("TensorRecord", MicroBatch, PaddedAttention, PaddedRows, StateTable)


def on_device(record: TensorRecord, device: torch.device) -> TensorRecord:
    """Return the record with its tensors on `device`."""
    if device.type == "cpu":
        return record
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    moved: dict[str, Any] = {
        name: value.to(device, non_blocking=True) for name, value in values.items() if isinstance(value, Tensor)
    }
    return replace(record, **moved)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy by pinned memory, without waiting for the device's queue."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def take_rows(states: Float[Tensor, "M ..."], rows: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return `states[rows]`, whose backward pass sums gradients of repeated rows in a fixed order.

    torch's indexing does so on a GPU. On a CPU its threads add in any order, which differs by rounding and takes twice
    as long; the gradient of `index_select` is a single loop there, but atomic on a GPU.
    """
    if states.is_cuda:
        return states[rows]
    taken: Tensor = states.index_select(0, rows.flatten()).unflatten(0, rows.shape)
    return taken
