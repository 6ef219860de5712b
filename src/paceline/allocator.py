"""What a process has freed and its C library still holds."""

import ctypes

import torch


def return_free_memory(device: torch.device) -> None:
    """Give the system what the process has freed on a CPU, where its C library can (glibc).

    Before a backward pass with layers computed again: what sampling and the forward pass left lies between pieces that
    stay, too small for the gradients, which then come on top. 4 % of the step of 0.5 billion parameters in memory.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if device.type == "cpu" else None
    if trim is not None:
        trim(0)
