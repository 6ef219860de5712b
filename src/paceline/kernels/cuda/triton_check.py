"""Check for Triton, which comes with torch's CUDA builds and is never imported where it is not used."""

import functools
import importlib.util
import os
from collections.abc import Callable
from typing import TypeVar

import torch

from paceline.errors import first_line

LEAST_CAPABILITY = (8, 0)
"""Least compute capability with the bfloat16 that the kernels need."""
Computed = TypeVar("Computed")


@functools.cache
def triton_problem(device: torch.device, dtype: torch.dtype = torch.float32) -> str | None:
    """Return why Triton's kernels cannot serve tensors of this device and precision; None if they can be tried."""
    if dtype not in (torch.float32, torch.bfloat16):
        return f"they compute in float32 or bfloat16, not in {dtype}"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if os.environ.get("TRITON_INTERPRET") == "1":  # Triton's own switch, read when a kernel is defined
        return None
    if device.type != "cuda":
        return f"it compiles for CUDA, the tensors are on {device.type}"
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        return f"it needs compute capability 8.0, the device has {capability[0]}.{capability[1]}"
    return None


def trial_problem(compute: Callable[[], Computed], difference: Callable[[Computed], float], most: float) -> str | None:
    """Return why a kernel fails a trial on made-up numbers; None if it runs and differs by rounding only.

    `difference` is of what it `compute`s from torch's operations, at `most` this.
    """
    try:
        got = compute()
    except (RuntimeError, OSError, ImportError) as error:  # of a compiler, a driver, a package in parts
        return f"they do not run here: {first_line(error)}"
    off = difference(got)
    # negated, so that NaN does not pass
    return None if off <= most else f"they differ from torch's operations by {off:.1g}"


def next_power(width: int) -> int:
    """Return the least power of two that is no smaller: the number of a program's columns."""
    return 1 << (width - 1).bit_length()


def warps_of(width: int) -> int:
    """Return how many warps have a row, so that a thread has eight of its elements where it can: 16 bytes of each."""
    return min(16, max(1, next_power(width) // 256))
