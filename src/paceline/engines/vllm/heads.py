"""Attention heads as wide as vLLM's CPU build knows them: narrower ones are filled up with zeros, the same function.

Rotary positions turn the pair (i, i + width / 2) at the rate base ** (-2 i / width). In a head `times` as wide, pair
i therefore becomes pair `times` * i. Scores are divided by the root of the width, so queries are multiplied by that of
`times`.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

NARROWEST = 32
"""Width of a head, at least, of vLLM's attention on a CPU."""
WIDENED = ("llama",)
"""Architectures whose heads vLLM takes as wide as the configuration says, without a norm over each head."""


def head_width(config: Any) -> int:
    """Return the width of an attention head from the configuration of a model's text part."""
    width: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return width


def widening(config: Any, device: str) -> int:
    """How many times as wide the heads have to be; 1: as they are."""
    width = head_width(config)
    is_narrow = device == "cpu" and width < NARROWEST and NARROWEST % width == 0
    return NARROWEST // width if is_narrow and config.model_type in WIDENED else 1


def widened(weights: Iterable[tuple[str, Tensor]], width: int, times: int) -> Iterator[tuple[str, Tensor]]:
    """The weights of a model with heads of `width`, by name, as those of one with heads of `times` * `width`."""
    for name, tensor in weights:
        yield name, tensor if times == 1 else _widened(name, tensor, width, times)


def _widened(name: str, value: Tensor, width: int, times: int) -> Tensor:
    kind, what = name.split(".")[-2:]
    if kind == "o_proj" and what == "weight":
        return _filled_up(value.T, width, torch.arange(width), times).T.contiguous()
    if kind not in ("q_proj", "k_proj", "v_proj"):
        return value
    turned = torch.cat([torch.arange(half, half + times * width // 2, times) for half in (0, times * width // 2)])
    places = torch.arange(width) if kind == "v_proj" else turned
    return _filled_up(value * times**0.5 if kind == "q_proj" else value, width, places, times)


def _filled_up(value: Tensor, width: int, places: Tensor, times: int) -> Tensor:
    """Each head's rows at their places among zeros."""
    heads = value.unflatten(0, (-1, width))
    wide = heads.new_zeros(heads.shape[0], times * width, *heads.shape[2:])
    wide[:, places] = heads
    filled_up: Tensor = wide.flatten(0, 1)
    return filled_up
