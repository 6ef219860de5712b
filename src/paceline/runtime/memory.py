"""What a process has freed and its C library or torch still holds, and how torch says that there is no more."""

import ctypes
import gc

import torch

_SAID_ON_A_CPU = ("can't allocate memory", "not enough memory")
"""Parts of what torch's allocators of main memory say, whose errors have no kind of their own."""


def return_free_memory(device: torch.device) -> None:
    """Give the system what the process has freed on a CPU, where its C library can (glibc).

    Before a backward pass with layers computed again: what sampling and the forward pass left lies between pieces that
    stay, too small for the gradients, which then come on top. 4 % of the step of 0.5 billion parameters in memory.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if device.type == "cpu" else None
    if trim is not None:
        trim(0)


def release_memory(device: torch.device) -> None:
    """Give back all that can be, after memory has run out: graphs that only cycles hold, and what torch keeps."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return_free_memory(device)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory has run out, on a GPU or in main memory.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."))
    True
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _SAID_ON_A_CPU)
