"""Tensors as they are at a moment, in main memory, while their originals go on to change."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paceline.models.parallel.pieces import Piece

BUFFER_BYTES = 64 << 20
"""Of a buffer of a shelf, at least, and always a power of two, as torch takes locked memory: a large tensor leaves room
behind it for others, and what a small model does not touch takes nothing."""
ALIGNMENT = 64
"""Bytes of a cache line: of no type a number lies across two."""


@dataclass(kw_only=True, slots=True)
class _Buffer:
    """Memory that copies lie in one behind the other."""

    memory: Tensor
    """Bytes."""
    used: int = 0


class Shelf:
    """Main memory for the copies of one moment, kept for those of the next.

    The system fills fresh memory with zeros page by page, 0.6 s per GiB and as much again to lock it in its place; a
    copy into memory that is there takes 0.1 s, and 0.02 s from a GPU where it is locked. torch's own store of locked
    memory is no such place: it gives all of it back whenever a graph is recorded.
    """

    def __init__(self, free: Callable[[], int | None], *, is_locked: bool = False) -> None:
        """`free` says how many bytes of main memory are left, where the system does; `is_locked`: for a GPU's tensors,
        which are copied to it at the speed of the bus."""
        self.free, self._is_locked = free, is_locked
        self._buffers: list[_Buffer] = []

    @property
    def nbytes(self) -> int:
        """That it has taken of main memory."""
        return sum(buffer.memory.nbytes for buffer in self._buffers)

    def clear(self) -> None:
        """Nothing on it is needed any more: what is copied next takes its place."""
        for buffer in self._buffers:
            buffer.used = 0

    def give_back(self) -> None:
        """Nothing on it is needed any more, and others need the memory."""
        self._buffers.clear()

    def copy(self, tensor: Tensor) -> Tensor:
        """The tensor in memory of its own, in a storage of its own; of a GPU's once its device is synchronised."""
        if not tensor.numel():
            return torch.empty(tensor.shape, dtype=tensor.dtype)
        buffer = self._buffer_for(tensor.nbytes)
        # not a slice of one tensor: whoever writes files takes two tensors of one storage for one
        place = torch.frombuffer(buffer.memory.numpy(), dtype=tensor.dtype, count=tensor.numel(), offset=buffer.used)
        buffer.used = _aligned(buffer.used + tensor.nbytes)
        return place.view(tensor.shape).copy_(tensor.detach(), non_blocking=True)

    def _buffer_for(self, nbytes: int) -> _Buffer:
        for buffer in self._buffers:
            if buffer.used + nbytes <= buffer.memory.nbytes:
                return buffer
        size = max(BUFFER_BYTES, 1 << (nbytes - 1).bit_length())
        self._buffers.append(_Buffer(memory=torch.empty(size, dtype=torch.uint8, pin_memory=self._is_locked)))
        return self._buffers[-1]


def copies(tensors: Mapping[str, Tensor], shelf: Shelf) -> dict[str, Tensor]:
    """A copy of each tensor, of one with two names one copy."""
    found = dict[int, Tensor]()
    for tensor in tensors.values():
        if id(tensor) not in found:
            found[id(tensor)] = shelf.copy(tensor)
    for device in {tensor.device for tensor in tensors.values() if tensor.device.type == "cuda"}:
        torch.cuda.synchronize(device)
    return {name: found[id(tensor)] for name, tensor in tensors.items()}


def copied_pieces(pieces: Mapping[str, Piece], shelf: Shelf) -> dict[str, Piece]:
    """The same pieces, in memory of their own."""
    own = copies({name: piece.tensor for name, piece in pieces.items()}, shelf)
    return {name: replace(piece, tensor=own[name]) for name, piece in pieces.items()}


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
