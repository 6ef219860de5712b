"""Attention of packed micro-batches without padding: two calls of a variable-length kernel, and no key is copied.

    tokens    p0 p0 p0 p1 p1 | a a a b b c c c c      completions a, b of p0 and c of p1
    own       \\_____/ \\___/   \\___/ \\_/ \\_____/       every sequence causally over itself
    prompts                    \\_______/ \\_____/       a group's completions over its prompt's keys, all of them

The second call reads a prompt's keys once for all completions of the group. Both are put together by their logsumexps.
M tokens, of which X belong to completions, H query heads, K key/value heads, D head width.
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from paceline.kernels.flash_attention import AttentionKernel, Spans, merged
from paceline.models.rows import to_device
from paceline.objective.micro_batches import MicroBatch

TokenRows = slice | Tensor
"""Indices of packed tokens, or a slice if they are contiguous, so that nothing is copied."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VarlenLayout:
    """Where sequences lie in a micro-batch; made once and used by every layer."""

    own: Spans
    prompts: Spans | None
    """One sequence per prompt that has completion inputs: these, and the prompt; None where no prompt has any."""
    queries: TokenRows
    """The X completion inputs, prompt by prompt."""
    keys: TokenRows
    """The tokens of the prompts that have any."""


def varlen_layout(batch: MicroBatch, device: torch.device) -> VarlenLayout:
    """The layout of a micro-batch; lengths are read from the host, never from the device."""
    lengths = [length for length in (*batch.prompt_lengths, *batch.input_lengths) if length]
    inputs = [0] * len(batch.prompt_lengths)
    for prompt, length in zip(batch.prompt_of_sample, batch.input_lengths, strict=True):
        inputs[prompt] += length
    asked = [prompt for prompt, length in enumerate(inputs) if length]
    queries, keys = [inputs[prompt] for prompt in asked], [batch.prompt_lengths[prompt] for prompt in asked]
    prompt_starts = [0, *accumulate(batch.prompt_lengths)]
    starts = list(accumulate(batch.input_lengths, initial=prompt_starts[-1]))
    by_prompt = sorted(range(len(batch.input_lengths)), key=lambda sample: batch.prompt_of_sample[sample])
    of_completions = [starts[sample] + place for sample in by_prompt for place in range(batch.input_lengths[sample])]
    of_prompts = [token for prompt in asked for token in range(*prompt_starts[prompt : prompt + 2])]
    return VarlenLayout(
        own=_spans(lengths, lengths, device, causal=True),
        prompts=_spans(queries, keys, device, causal=False) if asked else None,
        queries=_rows(of_completions, device),
        keys=_rows(of_prompts, device),
    )


def _spans(queries: list[int], keys: list[int], device: torch.device, *, causal: bool) -> Spans:
    starts = [torch.tensor([0, *accumulate(lengths)], dtype=torch.int32) for lengths in (queries, keys)]
    return Spans(
        queries=to_device(starts[0], device),
        keys=to_device(starts[1], device),
        # for one query per sequence the kernel takes a path of its own, made for decoding
        most_queries=max(2, *queries),
        most_keys=max(keys),
        causal=causal,
    )


def _rows(tokens: list[int], device: torch.device) -> TokenRows:
    first = tokens[0] if tokens else 0
    run = range(first, first + len(tokens))
    return slice(run.start, run.stop) if tokens == list(run) else to_device(torch.tensor(tokens), device)


def varlen_attention(
    query: Float[Tensor, "M H D"],
    key: Float[Tensor, "M K D"],
    value: Float[Tensor, "M K D"],
    layout: VarlenLayout,
    scaling: float,
    kernel: AttentionKernel,
) -> Float[Tensor, "M H D"]:
    """Prompts attend causally to themselves; completions to their prompt and, causally, to themselves.

    In the precision of `value`: under autocast, rotary embeddings leave queries and keys in float32.
    """
    states = (query.to(value.dtype), key.to(value.dtype), value)
    return cast(Tensor, _VarlenAttention.apply(*states, layout, scaling, kernel))  # type: ignore[no-untyped-call]


class _VarlenAttention(torch.autograd.Function):
    """The gradient of each call is its part of the whole's, which the kernels give for the whole's logsumexp."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layout: VarlenLayout,
        scaling: float,
        kernel: AttentionKernel,
    ) -> Tensor:
        out, normaliser = kernel.forward(query, key, value, layout.own, scaling)
        if layout.prompts is not None:
            own = (out[layout.queries], normaliser[:, layout.queries])
            states = (query[layout.queries], key[layout.keys], value[layout.keys])
            prompts = kernel.forward(*states, layout.prompts, scaling)
            out[layout.queries] = merged(own, prompts)
            normaliser[:, layout.queries] = torch.logaddexp(own[1], prompts[1])
        ctx.save_for_backward(query, key, value, out, normaliser)
        ctx.layout, ctx.scaling, ctx.kernel = layout, scaling, kernel
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, normaliser = ctx.saved_tensors
        layout, grad = ctx.layout, gradients[0].contiguous()
        grads = ctx.kernel.backward(grad, (query, key, value), (out, normaliser), layout.own, ctx.scaling)
        if layout.prompts is not None:
            rows, keys = layout.queries, layout.keys
            shares = ctx.kernel.backward(
                grad[rows],
                (query[rows], key[keys], value[keys]),
                (out[rows], normaliser[:, rows].contiguous()),
                layout.prompts,
                ctx.scaling,
            )
            for whole, part, at in zip(grads, shares, (rows, keys, keys), strict=True):
                whole[at] += part
        return *grads, None, None, None
