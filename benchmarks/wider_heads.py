"""The shipped model with attention heads of 32 instead of 16, which is the same function.

vLLM's CPU build knows no heads of 16. Zeros fill them up. Rotary positions turn the pair (i, i + width / 2) at the rate
base ** (-2 i / width), so pair i of a head becomes pair 2 i of a head twice as wide. Scores are divided by the root of
the width, so queries are multiplied by the root of 2.
"""

from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM


def write_twin(source: str, place: Path) -> None:
    """Into `place`: the model of `source` with heads twice as wide, in float32."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    width = model.config.head_dim
    turned = torch.cat([torch.arange(0, width, 2), torch.arange(width, 2 * width, 2)])
    plain = torch.arange(width)
    config = type(model.config)(**{**model.config.to_dict(), "head_dim": 2 * width})
    twin = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    weights = {name: _widened(name, value, width, turned, plain) for name, value in model.state_dict().items()}
    twin.load_state_dict(weights)
    twin.generation_config = model.generation_config
    twin.save_pretrained(place)


def _widened(name: str, value: Tensor, width: int, turned: Tensor, plain: Tensor) -> Tensor:
    """A parameter of the attention with its heads filled up; others as they are."""
    kind = name.split(".")[-2]
    if kind == "o_proj" and value.ndim == 2:
        return _widened("v_proj.weight", value.T, width, turned, plain).T.contiguous()
    if kind not in ("q_proj", "k_proj", "v_proj"):
        return value
    heads = value.unflatten(0, (-1, width))
    wide = heads.new_zeros(heads.shape[0], 2 * width, *heads.shape[2:])
    wide[:, plain if kind == "v_proj" else turned] = heads * (2**0.5 if kind == "q_proj" else 1.0)
    return wide.flatten(0, 1)
