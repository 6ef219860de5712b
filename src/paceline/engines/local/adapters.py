"""The weight that a linear layer computes with: its own, plus the product of a LoRA adapter's matrices.

peft's layers are recognised by their class's name: an engine needs nothing else of the library.

O outputs, I inputs, r rank.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from paceline.engines.local.operations import Linear
from paceline.kernels.linear import ProductLinear

_LORA_LINEAR = ("peft.tuners.lora.layer", "Linear")


def linear_problem(module: nn.Module) -> str | None:
    """What keeps this module from being read as weight and bias, None when nothing does."""
    if _is_plain(module):
        return None
    layer: Any = module
    if not _is_lora(layer):
        return f"is a {type(module).__name__} of {type(module).__module__}, not a plain Linear"
    if not _is_plain(layer.base_layer):
        return f"has an adapter on a {type(layer.base_layer).__name__}, not on a plain Linear"
    if layer.lora_variant or any(layer.lora_bias.values()) or layer.merged:
        return "has an adapter that is more than the product of two matrices"
    return None


def is_adapted(module: nn.Module) -> bool:
    """Return whether the module is one of peft's, of whatever kind."""
    return type(module).__module__.startswith("peft.")


def read_linear(module: nn.Module) -> Linear:
    """Weight and bias: the module's own tensors where no adapter adds to them.

        weight = W + sum over active adapters of (alpha / r) B A

    The sum is made in the weights' own precision and belongs to the caller; the module is not changed.
    """
    base: Any = module.base_layer if _is_lora(module) else module
    bias = None if base.bias is None else base.bias.detach()
    return _merged_weight(module, base.weight.detach()), bias


def _merged_weight(module: Any, weight: Float[Tensor, "O I"]) -> Float[Tensor, "O I"]:
    if not _is_lora(module) or module.disable_adapters:
        return weight
    for name in module.active_adapters:
        if name in module.lora_A:
            left, right = module.lora_B[name].weight.detach(), module.lora_A[name].weight.detach()
            weight = torch.addmm(weight, left, right, alpha=module.scaling[name])
    return weight


def _is_plain(module: nn.Module) -> bool:
    return type(module) in (nn.Linear, ProductLinear)


def _is_lora(module: nn.Module) -> bool:
    return (type(module).__module__, type(module).__name__) == _LORA_LINEAR
