"""Attention over packed micro-batches, registered with transformers so that any of its decoders can run it.

A forward pass that carries `packed_attention` uses it; every other call (generation, padded rows) goes to
transformers' own scaled-dot-product attention, masks included.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from paceline.batching import PaddedAttention

NAME = "paceline"

NO_MASK = torch.ones(1, 1, 1, 1, dtype=torch.bool)
"""Passed as attention mask with packed batches: four dimensions keep transformers from building an M x M mask."""


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packed_attention: PaddedAttention | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """transformers' attention interface: query [1, heads, M, D], key and value [1, kv heads, M, D], all packed.

    Returns the output as [1, M, heads, D], and no attention weights.
    """
    if packed_attention is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    return _packed(query[0], key[0], value[0], packed_attention, options["scaling"]), None


def _packed(query: Tensor, key: Tensor, value: Tensor, layout: PaddedAttention, scaling: object) -> Tensor:
    """Prompts attend causally to themselves; completions to their prompt's keys, computed once, and to their own."""
    query, key, value = (states.transpose(0, 1) for states in (query, key, value))  # [M, heads, D]
    grouped = query.shape[1] != key.shape[1]
    keys, values = key[layout.prompt_index].transpose(1, 2), value[layout.prompt_index].transpose(1, 2)
    prompts = scaled_dot_product_attention(
        query[layout.prompt_index].transpose(1, 2), keys, values, is_causal=True, scale=scaling, enable_gqa=grouped
    )
    own_keys = key[layout.completion_index].transpose(1, 2)
    own_values = value[layout.completion_index].transpose(1, 2)
    completions = scaled_dot_product_attention(
        query[layout.completion_index].transpose(1, 2),
        torch.cat([keys[layout.prompt_of_sample], own_keys], dim=2),
        torch.cat([values[layout.prompt_of_sample], own_values], dim=2),
        attn_mask=layout.mask,
        scale=scaling,
        enable_gqa=grouped,
    )
    blocks = [prompts.transpose(1, 2).flatten(0, 1), completions.transpose(1, 2).flatten(0, 1)]
    return torch.cat(blocks)[layout.unpad][None]


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
