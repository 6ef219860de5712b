"""Experts of a mixture, registered with transformers so that any of its decoders can run them.

A router sends each of N tokens to k of E experts: R = N * k rows, which are sorted by expert once. Products are in the
precision of the computation; under autocast transformers' own stay in that of the weights. An expert without rows has a
gradient of 0. A kernel of a CPU does all of it in one call where a gate is known to it.
W width of the model, I inner width of an expert; of a product I inputs and O outputs.

An adapter beside the experts' matrices (peft's `target_parameters`) is two grouped products of low rank. peft itself
would add B A to the matrices of all experts in each pass.
"""

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from paceline.kernels.cpu.experts import SILU, ExpertMatrices, Gate, experts_serve, weighted_experts
from paceline.kernels.grouped import Groups, grouped_product, groups_of
from paceline.models.attention import NAME
from paceline.models.parallel.tensor_layers import own_rows
from paceline.models.rows import take_rows

try:
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
except ImportError:  # an older release, whose experts compute by themselves
    ALL_EXPERTS_FUNCTIONS = None  # type: ignore[assignment]

LAYOUT = ("num_experts", "has_gate", "has_bias", "is_transposed", "_apply_gate")
"""Attributes that transformers gives to a module of experts whose products can be replaced."""
LowRank = tuple[Float[Tensor, "E r I"], Float[Tensor, "E O r"], float]
"""An adapter's matrices A and B for each expert, and the scale of B A."""


def experts(
    module: Any,
    hidden_states: Float[Tensor, "N W"],
    top_k_index: Int[Tensor, "N k"],
    top_k_weights: Float[Tensor, "N k"],
) -> Float[Tensor, "N W"]:
    """Run transformers' experts interface: the sum over each token's experts of weight * expert(state)."""
    kind = hidden_states.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden_states.dtype
    axis, choices, count = getattr(module, "tensor_axis", None), top_k_index.flatten(), module.num_experts
    if axis is not None:  # some of the experts are on this rank
        count //= axis.size()
        choices, is_here = own_rows(choices, count, axis.get_local_rank())
        choices = choices.where(is_here, count)
    matrices, states = _matrices_for_the_kernel(module), hidden_states.to(dtype)
    if matrices is not None and experts_serve(states, matrices, choices):
        by_token = choices.view_as(top_k_index)
        return weighted_experts(states, by_token, top_k_weights, matrices).to(hidden_states.dtype)
    groups = groups_of(choices, count, all_here=axis is None)
    x = take_rows(states, groups.order // top_k_index.shape[1])
    if module.has_gate:
        x = module._apply_gate(_product(module, "gate_up_proj", x, groups))
    else:
        x = module.act_fn(_product(module, "up_proj", x, groups))
    x = _product(module, "down_proj", x, groups)
    if getattr(module, "has_post_expert_norm", False):
        x = module.post_expert_norm(x)
    outputs = x.new_zeros(len(choices), x.shape[1]).index_copy(0, groups.order, x).unflatten(0, top_k_index.shape)
    total: Tensor = (outputs * top_k_weights[..., None]).sum(1)
    return total.to(hidden_states.dtype)


def lay_by_input(model: nn.Module) -> None:
    """Have a copy's matrices lie by input, as the kernel of a CPU reads them fastest for a few rows.

    Experts that the kernel does not compute, or that have an adapter, stay as they are.
    """
    adapted = {id(wrapper.get_base_layer()) for wrapper in _wrappers(model)}
    for module in mixtures(model):
        matrices = None if id(module) in adapted else _matrices_for_the_kernel(module)
        if matrices is not None and not module.is_transposed:
            for name in ("gate_up_proj", "down_proj"):
                weight = getattr(module, name).detach()
                setattr(module, name, nn.Parameter(weight.mT.contiguous(), requires_grad=False))
            module.is_transposed = True


def _matrices_for_the_kernel(module: Any) -> ExpertMatrices | None:
    """Return an expert's parts as the kernel of a CPU takes them; None: it has others, or an adapter in this pass."""
    if not module.has_gate or getattr(module, "has_post_expert_norm", False) or getattr(module, "low_rank", None):
        return None
    if not module.down_proj.is_cpu:
        return None
    if "known_gate" not in vars(module):
        module.known_gate = _known_gate(module)
    if module.known_gate is None:
        return None
    return ExpertMatrices(
        gate_up=_here(module.gate_up_proj),
        down=_here(module.down_proj),
        gate_up_bias=_here(module.gate_up_proj_bias) if module.has_bias else None,
        down_bias=_here(module.down_proj_bias) if module.has_bias else None,
        transposed=module.is_transposed,
        gate=module.known_gate,
    )


@torch.no_grad()
def _known_gate(module: Any) -> Gate | None:
    """Return the kernel's gate that gives what the module's own does for numbers of both signs; None: there is none."""
    probe = torch.linspace(-12, 12, 2 * module.down_proj.shape[1 if module.is_transposed else 2])
    probe = probe[torch.randperm(len(probe), generator=torch.Generator().manual_seed(0))][None]
    with torch.autocast("cpu", enabled=False):
        wanted = module._apply_gate(probe)
    gate, up = probe.chunk(2, dim=-1)
    if torch.allclose(wanted, F.silu(gate) * up, atol=1e-6):
        return SILU
    alpha, limit = getattr(module, "alpha", None), getattr(module, "limit", None)
    if not isinstance(alpha, float) or not isinstance(limit, float):
        return None
    gate, up = probe[:, ::2].clamp(max=limit), probe[:, 1::2].clamp(-limit, limit)
    is_clamped = torch.allclose(wanted, gate * torch.sigmoid(alpha * gate) * (up + 1), atol=1e-6)
    return Gate(kind="clamped", alpha=alpha, limit=limit) if is_clamped else None


def _product(module: Any, name: str, x: Float[Tensor, "R I"], groups: Groups) -> Float[Tensor, "R O"]:
    weight = _here(getattr(module, name))
    out = grouped_product(x, weight.mT if module.is_transposed else weight, groups)
    for first, second, scale in getattr(module, "low_rank", {}).get(name, ()):
        out = out + scale * grouped_product(grouped_product(x, first, groups), second, groups)
    if module.has_bias:
        out = out + take_rows(_here(getattr(module, f"{name}_bias")).to(out.dtype), groups.members)
    return out


def _here(parameter: Tensor) -> Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def mixtures(model: nn.Module) -> list[Any]:
    """Return the modules of a model that hold experts by transformers' interface."""
    return [module for module in model.modules() if all(hasattr(module, name) for name in LAYOUT)]


def experts_by(model: nn.Module) -> str | None:
    """Return the name in transformers' interface of what computes a model's experts; None: it has none."""
    return next((module.config._experts_implementation or "eager" for module in mixtures(model)), None)


def serve_experts(model: nn.Module, name: str = NAME) -> str | None:
    """Have a model's experts computed by `experts`, or by what has this name; return why they cannot be, else None."""
    if ALL_EXPERTS_FUNCTIONS is None:
        return "this release of transformers has no interface for experts"
    for module in mixtures(model):
        module.config._experts_implementation = name
    for wrapper in _wrappers(model):
        if hasattr(wrapper, "get_delta_factors"):  # in older releases of peft the parameter itself is changed
            wrapper.forward = MethodType(_adapted, wrapper)
    return None


def _wrappers(model: nn.Module) -> list[Any]:
    """Return peft's wrappers around parameters, recognised by what they have: peft is loaded only where it is used."""
    return [module for module in model.modules() if hasattr(module, "parameter_name")]


def expert_parameters(model: nn.Module) -> list[str]:
    """Return the ends of the names of all experts' matrices, `experts.down_proj` for instance, each once."""
    names = {id(module): name for name, module in model.named_modules()}
    ends = (
        f"{names[id(module)].rpartition('.')[2]}.{name}"
        for module in mixtures(model)
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() == 3
    )
    return list(dict.fromkeys(ends))


def frozen_experts(model: nn.Module) -> int:
    """Return the number of weights of experts that are not trained and have no adapter."""
    adapted = {(id(wrapper.get_base_layer()), wrapper.parameter_name) for wrapper in _wrappers(model)}
    return sum(
        parameter.numel()
        for module in mixtures(model)
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() == 3 and not parameter.requires_grad and (id(module), name) not in adapted
    )


def _adapted(wrapper: Any, x: Tensor, *others: Any, **options: Any) -> Tensor:
    """Stand for the forward pass of peft's wrapper around a parameter, which adds B A to the parameter itself."""
    module = wrapper.get_base_layer()
    names = [name for name in wrapper.active_adapters if name in wrapper.lora_A]
    is_ours = getattr(getattr(module, "config", None), "_experts_implementation", None) == NAME
    if wrapper.disable_adapters or wrapper.merged or not is_ours or getattr(module, wrapper.parameter_name).dim() != 3:
        result: Tensor = type(wrapper).forward(wrapper, x, *others, **options)
        return result
    low_rank = vars(module).setdefault("low_rank", {})
    low_rank[wrapper.parameter_name] = [_matrices(wrapper, name) for name in names]
    try:
        result = wrapper.base_layer(x, *others, **options)
    finally:
        del low_rank[wrapper.parameter_name]
    return result


def _matrices(wrapper: Any, name: str) -> LowRank:
    left, right, scale = wrapper.get_delta_factors(name)  # of the weight as it is stored
    return (left.mT, right.mT, scale) if wrapper.get_base_layer().is_transposed else (right, left, scale)


if ALL_EXPERTS_FUNCTIONS is not None:
    ALL_EXPERTS_FUNCTIONS.register(NAME, experts)
