"""Attention over packed micro-batches, registered with transformers so that any of its decoders can run it.

A forward pass that carries `packed_attention` uses it; every other call (generation, padded rows) goes to
transformers' own scaled-dot-product attention, masks included.
"""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from paceline.errors import ModelError
from paceline.kernels.cpu.attention import SequenceTable, attention_serves, packed_attention, sequence_table
from paceline.kernels.flash_attention import FlashKernel, flash_problem
from paceline.models.parallel.exchange import Exchange
from paceline.models.rows import on_device, take_rows
from paceline.models.varlen import VarlenLayout, varlen_attention, varlen_layout
from paceline.objective.micro_batches import MicroBatch, PaddedAttention, padded_attention

NAME = "paceline"

HEEDED = frozenset({"scaling", "position_ids", "is_causal"})
"""Options of transformers' attention interface that packed attention heeds, or has no need of."""

NO_MASK = torch.ones(1, 1, 1, 1, dtype=torch.bool)
"""Passed as attention mask with packed batches: four dimensions keep transformers from building an M x M mask."""


@dataclass(frozen=True, kw_only=True)
class PackedLayout:
    """Where the sequences of a micro-batch lie, for all layers of a forward pass; each form is made when first used."""

    batch: MicroBatch
    exchange: Exchange | None = None
    """How a rank that has some of the tokens comes to all of them; None: it has all."""

    @functools.cached_property
    def table(self) -> SequenceTable:
        """For the kernel."""
        return sequence_table(self.batch.prompt_lengths, self.batch.prompt_of_sample, self.batch.input_lengths)

    @functools.cached_property
    def varlen(self) -> VarlenLayout:
        """For a kernel on the batch's device."""
        return varlen_layout(self.batch, self.batch.input_ids.device)

    @functools.cached_property
    def padded(self) -> PaddedAttention:
        """For torch's attention, on the batch's device."""
        return on_device(padded_attention(self.batch), self.batch.input_ids.device)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packed_attention: PackedLayout | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """Run transformers' attention interface: query [1, heads, M, D], key and value [1, kv heads, M, D], all packed.

    Returns the output as [1, M, heads, D], and no attention weights. ModelError: the layer sets an option that packed
    attention does not have, such as a cap of the scores.
    """
    if packed_attention is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)  # type: ignore[arg-type]
    for name, option in options.items():
        is_set = isinstance(option, Tensor) or bool(option)
        if (option is False and name == "is_causal") or (is_set and name not in HEEDED):
            raise ModelError(f"{type(module).__name__} sets {name}, which packed attention does not have")
    scaling = options["scaling"]
    assert isinstance(scaling, float)  # as all of transformers' decoders give it
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    return attend(query, key, value, packed_attention, scaling)[None], None


def attend(query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, scaling: float) -> Tensor:
    """Query [M, heads, D], key [M, kv heads, D], value [M, kv heads, E] to [M, heads, E], by a kernel where one serves.

    Prompts attend causally to themselves; completions to their prompt's keys and to their own. Where ranks share the
    tokens, M are this rank's, and it computes some of the heads of all of them.
    """
    kind = query.device.type
    if torch.is_autocast_enabled(kind):
        query, key, value = (states.to(torch.get_autocast_dtype(kind)) for states in (query, key, value))
    if layout.exchange is not None:
        query, key, value = layout.exchange.to_heads(query, key, value)
    heads, width = (query.shape[1], key.shape[1]), query.shape[-1]
    is_even = width == value.shape[-1]  # as the kernels take it
    if is_even and attention_serves(query.device, query.dtype, width):
        found = packed_attention(query, key, value, layout.table, scale=scaling)
    elif is_even and kind == "cuda" and flash_problem(query.device, query.dtype, heads, width) is None:
        found = varlen_attention(query, key, value, layout.varlen, scaling, FlashKernel())
    elif kind != "cpu" or query.dtype != torch.bfloat16:
        found = _padded(query, key, value, layout.padded, scaling)
    else:  # torch's masked attention takes twice as long to go back in bfloat16 as in float32
        with torch.autocast("cpu", enabled=False):
            found = _padded(query.float(), key.float(), value.float(), layout.padded, scaling).to(query.dtype)
    return found if layout.exchange is None else layout.exchange.to_tokens(found)


def _padded(query: Tensor, key: Tensor, value: Tensor, layout: PaddedAttention, scaling: float) -> Tensor:
    """In two padded blocks: the prompts, whose keys are computed once, and the completions."""
    grouped = query.shape[1] != key.shape[1]
    queries, keys, values = (take_rows(states, layout.prompt_index).transpose(1, 2) for states in (query, key, value))
    prompts = scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=scaling, enable_gqa=grouped)
    own = (take_rows(states, layout.completion_index).transpose(1, 2) for states in (query, key, value))
    own_queries, own_keys, own_values = own
    completions = scaled_dot_product_attention(
        own_queries,
        torch.cat([take_rows(keys, layout.prompt_of_sample), own_keys], dim=2),
        torch.cat([take_rows(values, layout.prompt_of_sample), own_values], dim=2),
        attn_mask=layout.mask,
        scale=scaling,
        enable_gqa=grouped,
    )
    blocks = [prompts.transpose(1, 2).flatten(0, 1), completions.transpose(1, 2).flatten(0, 1)]
    return torch.cat(blocks)[layout.unpad]


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
