"""Decoder layers that run a packed micro-batch through kernels: norms, rotation, attention and the gated product.

A layer keeps its modules, parameters and names, and its matrix products stay calls of its own linear layers, adapters
included. Everything but packed micro-batches in float32 or bfloat16 on a CPU takes the layer's own forward pass.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from paceline.kernels.cpu.attention import attention_serves, packed_attention
from paceline.kernels.cpu.training import add_rms_norm, gated_product
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
        if layout is None or others or not _serves(self, hidden_states, dtype):
            result: Tensor = super().forward(hidden_states, *others, **options)
            return result
        layer: Any = self
        x, normed = _normed(layer.input_layernorm, hidden_states, None, dtype)
        mixed = layer.self_attn.o_proj(_attended(layer.self_attn, normed, options["position_embeddings"], layout))
        x, normed = _normed(layer.post_attention_layernorm, x, mixed, dtype)
        output: Tensor = x + layer.mlp.down_proj(gated_product(layer.mlp.gate_proj(normed), layer.mlp.up_proj(normed)))
        return output


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
    is_float32 = all(norm.weight.dtype == torch.float32 for norm in norms)
    return is_float32 and all(_is_known(module, part) for module, part in parts)


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
