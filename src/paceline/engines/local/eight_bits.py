"""Layers in eight bits: which models they serve, and the model's own forward pass with rounded layers."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.engines.local.weights import linear_paths, planned_layers, read_linear
from paceline.kernels.float8 import ALIGNED, quantized


def unaligned_reason(model: PreTrainedModel) -> str | None:
    """Return why the layers of a model that the fused decoder reads cannot be multiplied in eight bits on CUDA."""
    for layer, parts in planned_layers(model):
        for path in linear_paths(layer, parts):
            linear: Any = layer.get_submodule(path)
            sides = linear.in_features, linear.out_features
            if any(side % ALIGNED for side in sides):
                return f"{path} is {sides[0]} by {sides[1]}, and both must be multiples of {ALIGNED}"
    return None


@contextlib.contextmanager
def rounded_layers(model: PreTrainedModel) -> Iterator[None]:
    """Within the context, the model's own forward pass multiplies its layers in eight bits, by torch's operations.

    The fused decoder in eight bits is compared with this, as the unrounded model may differ from both.
    """

    def product(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        weight, bias = read_linear(module)
        dtype, rows = output.dtype, inputs[0]
        numbers, scale = quantized(rows.to(dtype).flatten(0, -2))
        of_outputs, scales = quantized(weight.to(dtype))
        sums = F.linear(numbers.to(dtype), of_outputs.to(dtype)).float() * scale * scales.T
        result: Tensor = (sums if bias is None else sums + bias).to(dtype)
        return result.view(*rows.shape[:-1], result.shape[-1])

    linear = [
        layer.get_submodule(path) for layer, parts in planned_layers(model) for path in linear_paths(layer, parts)
    ]
    hooks = [module.register_forward_hook(product) for module in linear]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
