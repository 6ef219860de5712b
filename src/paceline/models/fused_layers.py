"""Decoder layers that run a packed micro-batch through kernels: norms, rotation, attention and the gated product.

A layer keeps its modules, parameters and names. It takes its own forward pass for anything but packed micro-batches in
float32 or bfloat16 that the device's kernels support. On a CPU, products are calls of the layer's linear layers. On
CUDA, plain linear layers are multiplied together, so that a kernel can recompute their input in the backward pass.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from typing_extensions import override

from paceline.kernels.cpu import training as on_cpu
from paceline.kernels.cpu.attention import attention_serves, packed_attention
from paceline.kernels.cuda import training as on_cuda
from paceline.kernels.linear import ProductLinear
from paceline.models.attention import PackedLayout, attend
from paceline.models.families import layer_plans
from paceline.models.families.layer_plan import LayerPlan
from paceline.models.head import decoder_of
from paceline.models.parallel.tensor_layers import combined

_Base = nn.Module if TYPE_CHECKING else object


class FusedLayer(_Base):  # type: ignore[misc]  # nn.Module where types are checked
    """Mixin before a family's own decoder layer."""

    plan: LayerPlan

    def forward(self, hidden_states: Tensor, *others: Any, **options: Any) -> Tensor:
        """Return the residual stream [1, M, H] after the layer; `packed_attention` in the options is the layout."""
        layout = options.get("packed_attention")
        kind = hidden_states.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden_states.dtype
        kernels = None if layout is None or others else _kernels(self, hidden_states, dtype)
        if layout is None or kernels is None:
            result: Tensor = super().forward(hidden_states, *others, **options)
            return result
        parts = self.plan.parts
        assert parts is not None
        attention, mixer_norm, feed_forward_norm = _modules(self, parts.mixer, *parts.norms[:2])
        projections, widening = _modules(self, *parts.projections), _modules(self, *parts.gate_up)
        head_norms = _modules(self, *(parts.head_norms or ()))
        output, down = _modules(self, parts.output, parts.down)
        x, states = kernels.normed_products(mixer_norm, hidden_states, None, projections, dtype)
        heads = [projected[0].unflatten(-1, (-1, attention.head_dim)) for projected in states]
        rotation = tuple(part[0].float().contiguous() for part in options["position_embeddings"])
        mixed = output(kernels.attended(heads, head_norms, rotation, layout, attention.scaling).flatten(1)[None])
        x, (gate, up) = kernels.normed_products(feed_forward_norm, x, mixed, widening, dtype)
        return x + kernels.product_of_gated(gate, up, down)


def _modules(layer: nn.Module, *paths: str) -> tuple[Any, ...]:
    return tuple(attrgetter(path)(layer) for path in paths)


class _CpuKernels:
    """A layer's operations on a CPU. M tokens, W width of the model, I of the gated layer, D of a head."""

    def normed_products(
        self, norm: Any, x: Tensor, addend: Tensor | None, linears: Sequence[Any], dtype: torch.dtype
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Return x + addend [1, M, W], and what each linear layer makes of its norm in `dtype`."""
        total, normed = on_cpu.add_rms_norm(x, addend, norm.weight, eps=norm.variance_epsilon, dtype=dtype)
        return total, [linear(normed) for linear in linears]

    def attended(
        self,
        heads: Sequence[Tensor],
        norms: Sequence[Any],
        rotation: Sequence[Tensor],
        layout: PackedLayout,
        scaling: float,
    ) -> Tensor:
        """Return attention's output [M, heads, D] for query, key and value [M, their heads, D] before the rotation.

        `norms` are those over query and key heads, if any.
        """
        query, key, value = heads
        if norms:
            query, key = (
                on_cpu.add_rms_norm(states.float(), None, norm.weight, eps=norm.variance_epsilon, dtype=value.dtype)[1]
                for states, norm in zip((query, key), norms, strict=True)
            )
        cosines, sines = rotation
        if layout.exchange is None:
            return packed_attention(query, key, value, layout.table, scale=scaling, rotation=(cosines, sines))
        # the rotation is of the tokens that are here, and the kernel is given all of them
        query, key = (_turned(states, cosines, sines).to(value.dtype) for states in (query, key))
        return attend(query, key, value, layout, scaling)

    def product_of_gated(self, gate: Tensor, up: Tensor, linear: Any) -> Tensor:
        """Return what a linear layer makes of silu(gate) * up [1, M, I]."""
        product: Tensor = linear(on_cpu.gated_product(gate, up))
        return product


class _CudaKernels(_CpuKernels):
    """A layer's operations on CUDA."""

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
        self,
        heads: Sequence[Tensor],
        norms: Sequence[Any],
        rotation: Sequence[Tensor],
        layout: PackedLayout,
        scaling: float,
    ) -> Tensor:
        scales = (norms[0].weight, norms[1].weight, norms[0].variance_epsilon) if norms else None
        (query, key, value), (cosines, sines) = heads, rotation
        query, key, value = on_cuda.turned_heads(query, key, value, (cosines, sines), scales)
        return attend(query, key, value, layout, scaling)

    @override
    def product_of_gated(self, gate: Tensor, up: Tensor, linear: Any) -> Tensor:
        if _is_plain(linear):
            return on_cuda.product_of_gated(gate, up, linear.weight, linear.bias)
        product: Tensor = linear(on_cuda.gated_product(gate, up))
        return product


def _is_plain(linear: nn.Module) -> bool:
    """Return whether a linear layer is a plain product: no adapter, not split over ranks, no hook."""
    hooks = linear._forward_hooks, linear._forward_pre_hooks, linear._backward_hooks, linear._backward_pre_hooks
    return type(linear) in (nn.Linear, ProductLinear) and not any(hooks)


def fuse_layers(model: PreTrainedModel) -> bool:
    """Let the model's layers use the kernels; return whether any can. Layers without a plan are left alone."""
    base = decoder_of(model)
    layers: Sequence[nn.Module] = getattr(base, "layers", ())
    plans = layer_plans(base.config, type(model).__name__) if layers else ()
    for layer, plan in zip(layers, plans, strict=False):
        if plan.family is not None and plan.trains_fused and plan.family.made(layer, "DecoderLayer"):
            layer.__class__ = combined(FusedLayer, type(layer))  # type: ignore[arg-type]  # mypy takes a class for unhashable
            setattr(layer, "plan", plan)  # noqa: B010  # torch types a module's attributes as modules
    return is_fused(model)


def is_fused(model: nn.Module) -> bool:
    """Return whether any layer is fused."""
    return any(isinstance(module, FusedLayer) for module in model.modules())


def restore_layers(model: nn.Module) -> None:
    """Undo `fuse_layers`."""
    for module in model.modules():
        if isinstance(module, FusedLayer):
            module.__class__ = type(module).__bases__[1]


def _kernels(layer: FusedLayer, x: Tensor, dtype: torch.dtype) -> _CpuKernels | None:
    """Return the kernels that support the layer's precision and modules on its device; None: there are none.

    An adapter may have replaced some modules; attention split over ranks has its own class
    (`parallel.tensor_layers.Block`).
    """
    family, parts = layer.plan.family, layer.plan.parts
    assert family is not None
    assert parts is not None
    norms, (attention, mlp) = _modules(layer, *parts.norms), _modules(layer, parts.mixer, parts.feed_forward)
    is_known = family.made(attention, "Attention") and family.made(mlp, "MLP")
    is_known = is_known and all(family.made(norm, "RMSNorm") for norm in norms)
    if not is_known or x.dtype != torch.float32 or x.shape[0] != 1 or layer.plan.activation not in ("silu", "swish"):
        return None
    if on_cuda.training_problem(x.device, dtype) is None:
        return _CudaKernels()
    is_float32 = all(norm.weight.dtype == torch.float32 for norm in norms)
    is_even = x.shape[-1] % 16 == 0 and layer.plan.inner % 16 == 0
    return _CpuKernels() if is_float32 and is_even and attention_serves(x.device, dtype, attention.head_dim) else None


def _turned(states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Apply Llama's rotary embedding to [m, heads, D], which pairs the halves of a head."""
    first, second = states.chunk(2, dim=-1)
    return states * cosines[:, None] + torch.cat([-second, first], dim=-1) * sines[:, None]
