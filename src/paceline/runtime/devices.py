"""Where and in which precision a model computes, from the options and from what the machine has."""

import math
import resource
from pathlib import Path

import torch

from paceline.config.sections import ModelConfig
from paceline.errors import ModelError
from paceline.kernels.linear import has_fast_bfloat16

ONE_THREAD_PARAMETERS = 1_000_000
"""Below this a second thread gains a third on idle cores and, where another process wants the core, costs up to 18
times the time: the threads spin for each other at every one of many small operations."""


BFLOAT16_PARAMETERS = 10_000_000
"""From here on a CPU's bfloat16 units earn more than the conversions cost: 30 million parameters train in 0.6 of the
time, 150,000 in no less."""


CONTROL_GROUP = Path("/sys/fs/cgroup")
"""Of the container, as seen from inside it."""


def choose_device(config: ModelConfig) -> torch.device:
    """The device that `--device` means on this machine.

    Raises:
        ModelError: CUDA is asked for and there is none.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ModelError("--device must be cpu or auto here, got 'cuda'; torch finds no CUDA device")
    return torch.device("cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu")


def free_memory(device: torch.device) -> int | None:
    """Bytes that could be allocated on the device now; None where the system does not say.

    Of main memory what the kernel counts as available, or what the container has left, whichever is less.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        available = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):  # no Linux, or one without this line
        return None
    return min(available, _left_in_container())


def used_memory(device: torch.device) -> int | None:
    """Bytes that this process uses: of tensors on a CUDA device, else of main memory; None: the system does not say."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # no Linux
        return None
    return pages * resource.getpagesize()


def _left_in_container() -> int | float:
    """By version 2 of Linux's control groups, files in the cache not counted as used."""
    try:
        limit, used = ((CONTROL_GROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (CONTROL_GROUP / "memory.stat").read_text().splitlines())
        files = int(cached["inactive_file"])
    except (OSError, KeyError):
        return math.inf
    return math.inf if limit == "max" else max(0, int(limit) - int(used) + files)


def choose_threads(config: ModelConfig, parameters: int) -> int:
    """CPU threads for a model of this many parameters, by `--threads`."""
    if config.threads:
        return config.threads
    return 1 if parameters < ONE_THREAD_PARAMETERS else torch.get_num_threads()


def choose_dtype(config: ModelConfig, device: torch.device, parameters: int) -> torch.dtype:
    """Precision of the computation, for a model of this many parameters, by `--dtype`."""
    if config.dtype == "auto":
        units = torch.cuda.is_bf16_supported() if device.type == "cuda" else has_fast_bfloat16()
        return automatic_dtype(device, parameters, bfloat16_in_hardware=units)
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.dtype]


def automatic_dtype(device: torch.device, parameters: int, *, bfloat16_in_hardware: bool) -> torch.dtype:
    """bfloat16 where the machine multiplies it in hardware; on a CPU only for models that gain by it."""
    gains = device.type == "cuda" or parameters >= BFLOAT16_PARAMETERS
    return torch.bfloat16 if bfloat16_in_hardware and gains else torch.float32
