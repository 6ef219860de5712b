"""Weights to vLLM's workers: as they are where the one worker is this process, through a file in memory elsewhere."""

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

MEMORY = Path("/dev/shm")
"""Where files are memory; any directory serves."""


def deliver(vllm: Any, weights: Iterable[tuple[str, Tensor]], *, policy_version: int, workers: int) -> None:
    """Have every worker take all of these, which have seen so many updates, in one call."""
    if workers == 1:
        vllm.collective_rpc("take_weights", args=({"tensors": weights}, policy_version))
        return
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None, prefix="paceline-weights-") as directory:
        path = Path(directory) / "weights.safetensors"
        tensors = {name: tensor.contiguous() for name, tensor in weights}
        save_file(tensors, path)
        vllm.collective_rpc("take_weights", args=({"path": str(path), "names": list(tensors)}, policy_version))
