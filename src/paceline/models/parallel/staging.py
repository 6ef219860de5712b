"""Host-memory snapshots of tensors, in buffers that are reused from one checkpoint to the next."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

BUFFER_BYTES = 64 << 20
"""Smallest size of a buffer. Sizes are powers of two, as torch's pinned memory is; untouched pages take no memory."""
ALIGNMENT = 64
"""Bytes of a cache line, a multiple of the size of every element type."""


@dataclass(kw_only=True, slots=True)
class _Buffer:
    memory: Tensor
    used: int = 0
    """Bytes in use, from the start."""


class StagingBuffers:
    """Host memory for one snapshot, kept for the next.

    Zeroing fresh pages takes 0.6 s per GiB, and pinning them as much again. A copy into existing memory takes 0.1 s,
    or 0.02 s from a GPU into pinned memory. torch's own cache of pinned memory is emptied when a CUDA graph is
    recorded.
    """

    def __init__(self, free: Callable[[], int | None], *, is_locked: bool = False) -> None:
        """`free` returns the free bytes of host memory, if known; `is_locked` pins buffers, for copies from GPUs."""
        self.free, self._is_locked = free, is_locked
        self._buffers: list[_Buffer] = []

    @property
    def nbytes(self) -> int:
        """Bytes of host memory in use."""
        return sum(buffer.memory.nbytes for buffer in self._buffers)

    def clear(self) -> None:
        """Discard all copies; the next ones overwrite them."""
        for buffer in self._buffers:
            buffer.used = 0

    def give_back(self) -> None:
        """Discard all copies and free the memory."""
        self._buffers.clear()

    def copy(self, tensor: Tensor) -> Tensor:
        """Copy a tensor into a storage of its own. A copy from a GPU is complete once its device is synchronised."""
        if not tensor.numel():
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        buffer = next((buffer for buffer in self._buffers if buffer.used + tensor.nbytes <= buffer.memory.nbytes), None)
        if buffer is None:
            size = max(BUFFER_BYTES, 1 << (tensor.nbytes - 1).bit_length())
            buffer = _Buffer(memory=torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=self._is_locked))
            self._buffers.append(buffer)
        # Not a slice of the buffer: safetensors takes two tensors of one storage for one tensor.
        memory = torch.frombuffer(buffer.memory.numpy(), dtype=tensor.dtype, count=tensor.numel(), offset=buffer.used)
        buffer.used = -(-(buffer.used + tensor.nbytes) // ALIGNMENT) * ALIGNMENT
        return memory.view(tensor.shape).copy_(tensor.detach(), non_blocking=True)


def copies(tensors: Mapping[str, Tensor], staging: StagingBuffers) -> dict[str, Tensor]:
    """Copy each tensor; a tensor with two names is copied once."""
    copied = dict[int, Tensor]()
    for tensor in tensors.values():
        if id(tensor) not in copied:
            copied[id(tensor)] = staging.copy(tensor)
    for device in {tensor.device for tensor in tensors.values() if tensor.device.type == "cuda"}:
        torch.cuda.synchronize(device)
    return {name: copied[id(tensor)] for name, tensor in tensors.items()}
