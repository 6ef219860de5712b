"""Where and in which precision a model computes, from the options and from what the machine has."""

import torch

from paceline.config import ModelConfig
from paceline.errors import ModelError

ONE_THREAD_PARAMETERS = 1_000_000
"""Below this a second thread gains a third on idle cores and, where another process wants the core, costs up to 18
times the time: the threads spin for each other at every one of many small operations."""


def choose_device(config: ModelConfig) -> torch.device:
    """The device that `--device` means on this machine.

    Raises:
        ModelError: CUDA is asked for and there is none.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ModelError("--device must be cpu or auto here, got 'cuda'; torch finds no CUDA device")
    return torch.device("cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu")


def choose_threads(config: ModelConfig, parameters: int) -> int:
    """CPU threads for a model of this many parameters, by `--threads`."""
    if config.threads:
        return config.threads
    return 1 if parameters < ONE_THREAD_PARAMETERS else torch.get_num_threads()


def choose_dtype(config: ModelConfig, device: torch.device) -> torch.dtype:
    """Precision of the computation: bfloat16 where the machine multiplies it in hardware and nobody said otherwise."""
    if config.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.dtype]
