"""Decoder layers that run a packed micro-batch through kernels: norms, rotation, attention and the gated product.

A layer keeps its modules, parameters and names. Everything but packed micro-batches in float32 or bfloat16, where the
kernels of the device serve, takes the layer's own forward pass. On a CPU matrix products stay calls of the layer's own
linear layers; on CUDA only adapters and the like are called, and the products of plain ones are computed next to each
other, so that nothing is kept for the backward pass that a kernel makes again.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from typing_extensions import override

from paceline.kernels.cpu import training as on_cpu
from paceline.kernels.cpu.attention import attention_serves, packed_attention
from paceline.kernels.cuda import training as on_cuda
from paceline.kernels.linear import ProductLinear
from paceline.models.attention import PackedLayout, attend
from paceline.models.parallel.tensor_layers import combined

FAMILIES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
"""Families of transformers whose layers are all of one plan, by module and prefix of the classes."""

_Base = nn.Module if TYPE_CHECKING else object


class FusedLayer(_Base):  # type: ignore[misc]  # nn.Module where types are checked
    """Put before a family's own decoder layer among the bases of a class."""

    def forward(self, hidden_states: Tensor, *others: Any, **options: Any) -> Tensor:
        """Residual stream [1, M, H] after the layer; `packed_attention` in the options says where sequences lie."""
        layout = options.get("packed_attention")
        kind = hidden_states.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden_states.dtype
        kernels = None if layout is None or others else _kernels(self, hidden_states, dtype)
        if layout is None or kernels is None:
            result: Tensor = super().forward(hidden_states, *others, **options)
            return result
        layer: Any = self
        attention, mlp = layer.self_attn, layer.mlp
        projections = attention.q_proj, attention.k_proj, attention.v_proj
        x, states = kernels.normed_products(layer.input_layernorm, hidden_states, None, projections, dtype)
        heads = [one[0].unflatten(-1, (-1, attention.head_dim)) for one in states]
        rotation = tuple(part[0].float().contiguous() for part in options["position_embeddings"])
        mixed = attention.o_proj(kernels.attended(attention, heads, rotation, layout).flatten(1)[None])
        widening = mlp.gate_proj, mlp.up_proj
        x, (gate, up) = kernels.normed_products(layer.post_attention_layernorm, x, mixed, widening, dtype)
        output: Tensor = x + kernels.product_of_gated(gate, up, mlp.down_proj)
        return output


class LayerKernels(Protocol):
    """A layer's operations on one kind of device. M tokens, W width of the model, I of the gated layer, D of a head."""

    def normed_products(
        self, norm: Any, x: Tensor, addend: Tensor | None, linears: Sequence[Any], dtype: torch.dtype
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Return x + addend [1, M, W], and what each linear layer makes of its norm in `dtype`."""

    def attended(
        self, attention: Any, heads: Sequence[Tensor], rotation: tuple[Tensor, ...], layout: PackedLayout
    ) -> Tensor:
        """Return what attention finds [M, heads, D] for query, key and value [M, their heads, D], not yet turned."""

    def product_of_gated(self, gate: Tensor, up: Tensor, linear: Any) -> Tensor:
        """Return what a linear layer makes of silu(gate) * up [1, M, I]."""


class _OnCpu(LayerKernels):
    @override
    def normed_products(
        self, norm: Any, x: Tensor, addend: Tensor | None, linears: Sequence[Any], dtype: torch.dtype
    ) -> tuple[Tensor, Sequence[Tensor]]:
        total, normed = on_cpu.add_rms_norm(x, addend, norm.weight, eps=norm.variance_epsilon, dtype=dtype)
        return total, [linear(normed) for linear in linears]

    @override
    def attended(
        self, attention: Any, heads: Sequence[Tensor], rotation: tuple[Tensor, ...], layout: PackedLayout
    ) -> Tensor:
        query, key, value = heads
        if hasattr(attention, "q_norm"):
            query, key = (
                on_cpu.add_rms_norm(states.float(), None, norm.weight, eps=norm.variance_epsilon, dtype=value.dtype)[1]
                for states, norm in ((query, attention.q_norm), (key, attention.k_norm))
            )
        cosines, sines = rotation
        if layout.exchange is None:
            turn = cosines, sines
            return packed_attention(query, key, value, layout.table, scale=attention.scaling, rotation=turn)
        # the rotation is of the tokens that are here, and the kernel is given all of them
        query, key = (_turned(states, cosines, sines).to(value.dtype) for states in (query, key))
        return attend(query, key, value, layout, attention.scaling)

    @override
    def product_of_gated(self, gate: Tensor, up: Tensor, linear: Any) -> Tensor:
        product: Tensor = linear(on_cpu.gated_product(gate, up))
        return product


class _OnCuda(LayerKernels):
    @override
    def normed_products(
        self, norm: Any, x: Tensor, addend: Tensor | None, linears: Sequence[Any], dtype: torch.dtype
    ) -> tuple[Tensor, Sequence[Tensor]]:
        scale, eps = norm.weight, norm.variance_epsilon
        weights, biases = [linear.weight for linear in linears], [linear.bias for linear in linears]
        if all(map(_is_plain, linears)) and len({bias is None for bias in biases}) == 1:
            return on_cuda.normed_products(x, addend, scale, weights, biases, eps=eps, dtype=dtype)
        total, normed = on_cuda.add_rms_norm(x, addend, scale, eps=eps, dtype=dtype)
        return total, [linear(normed) for linear in linears]

    @override
    def attended(
        self, attention: Any, heads: Sequence[Tensor], rotation: tuple[Tensor, ...], layout: PackedLayout
    ) -> Tensor:
        query, key, value = heads
        cosines, sines = rotation
        norms = None
        if hasattr(attention, "q_norm"):
            norms = attention.q_norm.weight, attention.k_norm.weight, attention.q_norm.variance_epsilon
        query, key, value = on_cuda.turned_heads(query, key, value, (cosines, sines), norms)
        return attend(query, key, value, layout, attention.scaling)

    @override
    def product_of_gated(self, gate: Tensor, up: Tensor, linear: Any) -> Tensor:
        if _is_plain(linear):
            return on_cuda.product_of_gated(gate, up, linear.weight, linear.bias)
        product: Tensor = linear(on_cuda.gated_product(gate, up))
        return product


def _is_plain(linear: nn.Module) -> bool:
    """Return whether a linear layer is its product and nothing else: no adapter, no part of a layer, no hook."""
    hooks = linear._forward_hooks, linear._forward_pre_hooks, linear._backward_hooks, linear._backward_pre_hooks
    return type(linear) in (nn.Linear, ProductLinear) and not any(hooks)


def fuse_layers(model: nn.Module) -> bool:
    """Let the model's layers use the kernels; return whether any can. Layers of other classes are left alone."""
    layers = [module for module in model.modules() if _is_known(module, "DecoderLayer")]
    for layer in layers:
        layer.__class__ = combined(FusedLayer, type(layer))  # type: ignore[arg-type]  # mypy takes a class for unhashable
    return bool(layers)


def is_fused(model: nn.Module) -> bool:
    """Return whether `fuse_layers` has changed it, and was not taken back."""
    return any(isinstance(module, FusedLayer) for module in model.modules())


def restore_layers(model: nn.Module) -> None:
    """Take `fuse_layers` back."""
    for module in model.modules():
        if isinstance(module, FusedLayer):
            module.__class__ = type(module).__bases__[1]


def _is_known(module: nn.Module, part: str) -> bool:
    """Return whether a module is this part of a family by its exact class, which a subclass is not."""
    found = type(module).__module__, type(module).__name__
    families = FAMILIES.items()
    return any(found == (f"transformers.models.{name}.modeling_{name}", prefix + part) for name, prefix in families)


def _kernels(layer: Any, x: Tensor, dtype: torch.dtype) -> LayerKernels | None:
    """Return the kernels that support the layer's precision and modules on its device; None: there are none.

    An adapter may have replaced some modules; attention split over ranks has its own class
    (`parallel.tensor_layers.Block`).
    """
    attention, mlp = layer.self_attn, layer.mlp
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    norms += [norm for name in ("q_norm", "k_norm") if (norm := getattr(attention, name, None)) is not None]
    parts = [(norm, "RMSNorm") for norm in norms] + [(attention, "Attention"), (mlp, "MLP")]
    is_known = all(_is_known(module, part) for module, part in parts)
    if not is_known or x.dtype != torch.float32 or x.shape[0] != 1 or mlp.config.hidden_act not in ("silu", "swish"):
        return None
    if on_cuda.training_problem(x.device, dtype) is None:
        return _OnCuda()
    is_float32 = all(norm.weight.dtype == torch.float32 for norm in norms)
    is_even = x.shape[-1] % 16 == 0 and mlp.config.intermediate_size % 16 == 0
    return _OnCpu() if is_float32 and is_even and attention_serves(x.device, dtype, attention.head_dim) else None


def _turned(states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Llama's rotary embedding of [m, heads, D], which pairs the halves of a head."""
    first, second = states.chunk(2, dim=-1)
    return states * cosines[:, None] + torch.cat([-second, first], dim=-1) * sines[:, None]
