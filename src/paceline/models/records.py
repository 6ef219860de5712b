"""Records of tensors on the device where a model computes."""

from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from paceline.objective.micro_batches import MicroBatch, PaddedAttention, PaddedRows

TensorRecord = TypeVar("TensorRecord", MicroBatch, PaddedAttention, PaddedRows)


def on_device(record: TensorRecord, device: torch.device) -> TensorRecord:
    """The record with its tensors on `device`."""
    if device.type == "cpu":
        return record
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    moved: dict[str, Any] = {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
    return replace(record, **moved)
