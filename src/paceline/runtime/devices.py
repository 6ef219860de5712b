"""Choice of device, precision and threads; memory of a device: free, used, given back, run out, copied to the host."""

import ctypes
import gc
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from paceline.config.sections import ModelConfig
from paceline.errors import ModelError
from paceline.kernels.linear import has_fast_bfloat16

ONE_THREAD_PARAMETERS = 1_000_000
"""Parameters below which one thread is used. A second thread gains a third on idle cores, but costs up to 18 times the
time where another process wants the core. Threads spin for each other at every small operation."""
BFLOAT16_PARAMETERS = 10_000_000
"""Parameters from which bfloat16 pays on a CPU with bfloat16 units: 30 million parameters train in 0.6 of the time,
150,000 in no less."""
CONTROL_GROUP = Path("/sys/fs/cgroup")
"""Control group of the container, as seen from inside it."""
_CPU_PHRASES = ("can't allocate memory", "not enough memory")
"""Phrases of torch's CPU allocators, whose errors have no type of their own."""


def choose_device(config: ModelConfig) -> torch.device:
    """Return the device that `--device` means on this machine.

    Raises:
        ModelError: CUDA is asked for and there is none.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ModelError("--device must be cpu or auto here, got 'cuda'; torch finds no CUDA device")
    return torch.device("cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu")


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that could be allocated on the device now; None if the system does not tell.

    Of main memory what the kernel counts as available, or what the container has left, whichever is less.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        available = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):  # no Linux, or one without this line
        return None
    left = _left_in_container()
    return available if left is None else min(available, left)


def used_memory(device: torch.device) -> int | None:
    """Return the bytes of tensors on a CUDA device, else of this process; None if the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # no Linux
        return None
    return pages * resource.getpagesize()


def _left_in_container() -> int | None:
    """Return the container's free bytes by version 2 of control groups, cached files included; None: no limit."""
    try:
        limit, used = ((CONTROL_GROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (CONTROL_GROUP / "memory.stat").read_text().splitlines())
        files = int(cached["inactive_file"])
    except (OSError, KeyError):
        return None
    return None if limit == "max" else max(0, int(limit) - int(used) + files)


def choose_threads(config: ModelConfig, parameters: int) -> int:
    """Return the CPU threads for a model of this many parameters, by `--threads`."""
    if config.threads:
        return config.threads
    return 1 if parameters < ONE_THREAD_PARAMETERS else torch.get_num_threads()


def choose_dtype(config: ModelConfig, device: torch.device, parameters: int) -> torch.dtype:
    """Return the precision of the computation for a model of this many parameters, by `--dtype`."""
    if config.dtype == "auto":
        units = torch.cuda.is_bf16_supported() if device.type == "cuda" else has_fast_bfloat16()
        return automatic_dtype(device, parameters, bfloat16_in_hardware=units)
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.dtype]


def automatic_dtype(device: torch.device, parameters: int, *, bfloat16_in_hardware: bool) -> torch.dtype:
    """Return bfloat16 where the hardware multiplies it; on a CPU only for models that gain by it."""
    gains = device.type == "cuda" or parameters >= BFLOAT16_PARAMETERS
    return torch.bfloat16 if bfloat16_in_hardware and gains else torch.float32


def return_free_memory(device: torch.device) -> None:
    """Return freed memory of a CPU process to the system, if its C library can (glibc).

    Called before a backward pass with activation checkpointing: sampling and the forward pass leave gaps too small for
    the gradients, which are then allocated on top. That costs 4 % of memory in a step of 0.5 billion parameters.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if device.type == "cpu" else None
    if trim is not None:
        trim(0)


def release_memory(device: torch.device) -> None:
    """Release what can be after memory has run out: graphs held by cycles only, and torch's cache."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return_free_memory(device)


def on_its_way(tensor: Shaped[Tensor, " N"]) -> Callable[[], np.ndarray]:
    """Copy a tensor to the host without waiting for its device; the function returned waits for the copy."""
    if not tensor.is_cuda:
        return tensor.numpy
    # page-locked memory is what a GPU can copy to by itself
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()

    def read() -> np.ndarray:
        arrived.synchronize()
        array: np.ndarray = copy.numpy().copy()  # so that the next copy may take the page-locked memory
        return array

    return read


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error says that memory has run out, on a GPU or in main memory.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."))
    True
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _CPU_PHRASES)
