"""What vLLM may take of a machine. It would take nearly all of it, unless told."""

from dataclasses import dataclass
from typing import Any

import torch

from paceline.engines.vllm.heads import head_width

BLOCK = 128
"""Tokens of a cache block of vLLM on a CPU; a sequence's last one is filled in part."""
MOST_BYTES = 4 << 30
"""Default size of the cache on a CPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """Sizes that vLLM is started with."""

    sequences: int
    """Completions computed at the same time, at most."""
    length: int
    """Tokens of a prompt and its completion, at most."""
    cache_bytes: int | None = None
    """Bytes of the cache of keys and values; None: on a CPU `wanted_cache`, on CUDA what is left of `gpu_share`."""
    gpu_share: float = 0.45
    """CUDA: share of a device's memory for weights, cache and activations together."""
    tensor_parallel: int = 1
    """Processes that each layer is spread over."""
    eager: bool = True
    """Compute without compiling, and on CUDA without recorded graphs."""


def wanted_cache(config: Any, room: Room, dtype: torch.dtype) -> int:
    """Bytes that hold every concurrent sequence at its greatest length, up to `MOST_BYTES`, but never less than one.

    Args:
        config: the configuration of the model's text part, as transformers names things.
        room: what is wanted.
        dtype: of keys and values.
    """
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    token = 2 * config.num_hidden_layers * heads * head_width(config) * dtype.itemsize
    sequence: int = token * BLOCK * (-(-room.length // BLOCK) + 1)
    return max(2 * sequence, min(room.sequences * sequence, MOST_BYTES))
