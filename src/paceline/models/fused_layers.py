"""Decoder layers that run a packed micro-batch through kernels: norms, rotation, attention and the gated product.

A layer keeps its modules, parameters and names, and its matrix products stay calls of its own linear layers, adapters
included. Everything but packed micro-batches in float32 or bfloat16 on a CPU takes the layer's own forward pass.
"""

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from paceline.kernels.cpu.attention import attention_serves, packed_attention
from paceline.kernels.cpu.training import add_rms_norm, gated_product
from paceline.models.attention import PackedLayout, attend

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
        if layout is None or others or not _serves(self, hidden_states, dtype):
            result: Tensor = super().forward(hidden_states, *others, **options)
            return result
        return _fused(self, hidden_states, options["position_embeddings"], layout, dtype)


def fuse_layers(model: nn.Module) -> bool:
    """Let the model's layers use the kernels; whether there is one that can. Layers of other classes are left alone."""
    layers = [module for module in model.modules() if _family(module, "DecoderLayer") is not None]
    for layer in layers:
        layer.__class__ = _fused_class(type(layer))  # type: ignore[arg-type]  # mypy takes a class for unhashable
    return bool(layers)


def is_fused(model: nn.Module) -> bool:
    """Return whether `fuse_layers` has changed it, and was not taken back."""
    return any(isinstance(module, FusedLayer) for module in model.modules())


def restore_layers(model: nn.Module) -> None:
    """Take `fuse_layers` back."""
    for module in model.modules():
        if isinstance(module, FusedLayer):
            module.__class__ = type(module).__bases__[1]


@functools.cache
def _fused_class(layer: type[nn.Module]) -> type[nn.Module]:
    return type(f"Fused{layer.__name__}", (FusedLayer, layer), {})


def _family(module: nn.Module, part: str) -> str | None:
    """The family whose `part` this is by its exact class; None for any other class, so also for a subclass."""
    for name, prefix in FAMILIES.items():
        if (type(module).__module__, type(module).__name__) == (
            f"transformers.models.{name}.modeling_{name}",
            prefix + part,
        ):
            return name
    return None


def _serves(layer: Any, x: Tensor, dtype: torch.dtype) -> bool:
    """Return whether the kernels support the layer's precision and modules.

    An adapter may have replaced some; attention split over ranks has its own class (`parallel.tensor_layers.Block`).
    """
    attention, mlp = layer.self_attn, layer.mlp
    if x.dtype != torch.float32 or not attention_serves(x.device, dtype, attention.head_dim):
        return False
    if x.shape[0] != 1 or x.shape[-1] % 16:
        return False
    if mlp.config.hidden_act not in ("silu", "swish") or mlp.config.intermediate_size % 16:
        return False
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    norms += [norm for name in ("q_norm", "k_norm") if (norm := getattr(attention, name, None)) is not None]
    parts = [(norm, "RMSNorm") for norm in norms] + [(attention, "Attention"), (mlp, "MLP")]
    return all(_family(module, part) is not None for module, part in parts) and all(
        norm.weight.dtype == torch.float32 for norm in norms
    )


def _fused(layer: Any, x: Tensor, rotation: tuple[Tensor, Tensor], layout: PackedLayout, dtype: torch.dtype) -> Tensor:
    x, normed = _normed(layer.input_layernorm, x, None, dtype)
    mixed = layer.self_attn.o_proj(_attended(layer.self_attn, normed, rotation, layout))
    x, normed = _normed(layer.post_attention_layernorm, x, mixed, dtype)
    mlp = layer.mlp
    output: Tensor = x + mlp.down_proj(gated_product(mlp.gate_proj(normed), mlp.up_proj(normed)))
    return output


def _attended(attention: Any, x: Tensor, rotation: tuple[Tensor, Tensor], layout: PackedLayout) -> Tensor:
    """Normed states [1, M, H] to the heads' outputs side by side, [1, M, heads * D]."""
    query, key, value = (
        projection(x)[0].unflatten(-1, (-1, attention.head_dim))
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    if hasattr(attention, "q_norm"):
        query = _normed(attention.q_norm, query.float(), None, x.dtype)[1]
        key = _normed(attention.k_norm, key.float(), None, x.dtype)[1]
    cosines, sines = (part[0].float().contiguous() for part in rotation)
    if layout.exchange is None:
        mixed = packed_attention(query, key, value, layout.table, scale=attention.scaling, rotation=(cosines, sines))
    else:  # the rotation is of the tokens that are here, and the kernel is given all of them
        query, key = (_turned(states, cosines, sines).to(value.dtype) for states in (query, key))
        mixed = attend(query, key, value, layout, attention.scaling)
    return mixed.flatten(1)[None]


def _turned(states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Llama's rotary embedding of [m, heads, D], which pairs the halves of a head."""
    first, second = states.chunk(2, dim=-1)
    return states * cosines[:, None] + torch.cat([-second, first], dim=-1) * sines[:, None]


def _normed(norm: Any, x: Tensor, addend: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return add_rms_norm(x, addend, norm.weight, eps=norm.variance_epsilon, dtype=dtype)
