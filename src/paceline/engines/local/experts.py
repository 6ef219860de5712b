"""Feed-forward layers with a router and experts, for the fused decoder: the model's own module on prepared weights.

So routing, shared experts and their gates are the family's own code, whatever they are. N tokens, W width of the model.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from paceline.engines.local.operations import Kernels
from paceline.models.experts import lay_by_input, mixtures, serve_experts

SHARED = "shared"
"""Part of the names of modules beside the experts that every token passes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedExperts:
    """A router with its experts, and those that every token passes."""

    block: nn.Module
    dtype: torch.dtype
    casts: bool
    """True if some weights are in another precision than `dtype`: the router's, which decides on its own."""

    def __call__(self, normed: Float[Tensor, "N W"]) -> Float[Tensor, "N W"]:
        """Return the sum over each token's experts, and over those that it passes anyway."""
        with torch.autocast(normed.device.type, dtype=self.dtype, enabled=self.casts):
            result = self.block(normed[None])
        update: Tensor = result[0] if isinstance(result, tuple) else result  # some give the router's scores as well
        return update[0].to(normed.dtype)


def prepared_experts(block: nn.Module, kernels: Kernels) -> PreparedExperts:
    """Prepare a module with a router and experts; the model's own stays as it is.

    Weights of experts, and of modules beside them, are the model's own tensors unless they need another precision or
    layout. Routers are the model's own modules.
    """
    experts = mixtures(block)
    casts = any(parameter.dtype != kernels.dtype for module in experts for parameter in module.parameters())
    twin = _twin(block, {id(module) for module in experts}, kernels.dtype)
    serve_experts(twin)
    if kernels.native is not None:
        lay_by_input(twin)
    return PreparedExperts(block=twin, dtype=kernels.dtype, casts=casts)


def _twin(module: Any, experts: set[int], dtype: torch.dtype, *, shared: bool = False) -> Any:
    """Copy a module down to its experts and shared layers, whose weights are cast; all else is the module's own."""
    twin = copy.copy(module)
    if id(module) in experts:
        twin.config = copy.copy(module.config)  # in which `serve_experts` says what computes them
    if id(module) in experts or (shared and isinstance(module, nn.Linear)):
        twin._parameters = {
            name: None if parameter is None else nn.Parameter(parameter.detach().to(dtype), False)
            for name, parameter in module._parameters.items()
        }
    twin._modules = dict(module._modules)
    for name, child in module._modules.items():
        is_shared = shared or SHARED in name
        if child is not None and (is_shared or any(id(inner) in experts for inner in child.modules())):
            twin._modules[name] = _twin(child, experts, dtype, shared=is_shared)
    return twin
