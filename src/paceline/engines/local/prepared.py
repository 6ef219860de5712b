"""A model's weights as the fused decoder's kernels take them fastest: joined, packed, in the precisions of each.

W width of the model, V vocabulary, H query heads, K key/value heads, D head width.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.engines.local.adapters import read_linear
from paceline.engines.local.operations import Kernels, Linear
from paceline.engines.local.weights import joined, joined_qk_norm

JOINED_WEIGHTS = 1 << 16
"""Elements of a weight below which copying it for each call costs less than a product more at each step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedLayer:
    """One decoder layer. Its norms have the residual stream's precision."""

    qkv: Linear
    """Queries, keys and values below each other: [(H + 2K) * D, W]."""
    qk_norm: Float[Tensor, "H+K D"] | None
    """Scale of the norm over each query and key head, where the architecture has one."""
    output: Linear
    mlp_norm: Float[Tensor, " W"]
    gate_up: tuple[Linear, ...]
    """Gate and up, or one layer that has them below each other."""
    down: Linear
    next_norm: Float[Tensor, " W"]
    """Before the next layer's attention; behind the last layer, before the head."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedWeights:
    """A whole model."""

    embedding: Float[Tensor, "V W"]
    """The model's own, in its own precision: only rows of it are read."""
    first_norm: Float[Tensor, " W"]
    layers: tuple[PreparedLayer, ...]
    head: Linear
    norm_eps: float


def prepared_weights(model: PreTrainedModel, kernels: Kernels) -> PreparedWeights:
    """The model's present weights. Made layer by layer, so that no two copies of all of them exist at a time.

    They are the model's own tensors but for what is joined, what has a LoRA adapter in it, and what needs another
    precision or oneDNN's layout.
    """
    decoder = model.model
    norms = [layer.input_layernorm for layer in decoder.layers] + [decoder.norm]
    scales = [norm.weight.detach().to(kernels.residual_dtype) for norm in norms]
    layers = [_prepared(layer, scale, kernels) for layer, scale in zip(decoder.layers, scales[1:], strict=True)]
    return PreparedWeights(
        embedding=decoder.embed_tokens.weight.detach(),
        first_norm=scales[0],
        layers=tuple(layers),
        head=_read(kernels, model.lm_head),
        norm_eps=model.config.rms_norm_eps,
    )


def _prepared(module: Any, next_norm: Tensor, kernels: Kernels) -> PreparedLayer:
    attention, mlp = module.self_attn, module.mlp
    own = mlp.gate_proj.weight
    copies = kernels.packs or kernels.dtype != own.dtype or own.numel() < JOINED_WEIGHTS
    gate_up = ((mlp.gate_proj, mlp.up_proj),) if copies else ((mlp.gate_proj,), (mlp.up_proj,))
    return PreparedLayer(
        qkv=_read(kernels, attention.q_proj, attention.k_proj, attention.v_proj),
        qk_norm=_qk_norm(attention, kernels.residual_dtype),
        output=_read(kernels, attention.o_proj),
        mlp_norm=module.post_attention_layernorm.weight.detach().to(kernels.residual_dtype),
        gate_up=tuple(_read(kernels, *parts) for parts in gate_up),
        down=_read(kernels, mlp.down_proj),
        next_norm=next_norm,
    )


def _read(kernels: Kernels, *modules: nn.Module) -> Linear:
    return kernels.prepared(joined([read_linear(module) for module in modules], kernels.dtype))


def _qk_norm(attention: Any, dtype: torch.dtype) -> Tensor | None:
    return joined_qk_norm(attention, dtype) if hasattr(attention, "q_norm") else None
