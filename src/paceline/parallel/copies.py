"""Tensors as they are at a moment, in main memory, while their originals go on to change."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from paceline.parallel.pieces import Piece


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A copy of each tensor, of one with two names one copy; from a GPU all at once, into pinned memory."""
    found = dict[int, Tensor]()
    for tensor in tensors.values():
        if id(tensor) not in found:
            found[id(tensor)] = _copy(tensor.detach())
    for device in {tensor.device for tensor in tensors.values() if tensor.device.type == "cuda"}:
        torch.cuda.synchronize(device)
    return {name: found[id(tensor)] for name, tensor in tensors.items()}


def copied_pieces(pieces: Mapping[str, Piece]) -> dict[str, Piece]:
    """The same pieces, in memory of their own."""
    own = copies({name: piece.tensor for name, piece in pieces.items()})
    return {name: replace(piece, tensor=own[name]) for name, piece in pieces.items()}


def _copy(tensor: Tensor) -> Tensor:
    if tensor.device.type != "cuda":
        return tensor.clone(memory_format=torch.contiguous_format)
    place = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return place.copy_(tensor, non_blocking=True)
