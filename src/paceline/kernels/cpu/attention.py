"""Attention over a packed micro-batch, rotation included: no padding, no mask, no copies.

M tokens, Q prompts and then S completions laid end to end; D width of a head, a multiple of 16.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from paceline.kernels.cpu.compiling import STORAGE, kernel, library
from paceline.kernels.flash_attention import grad_of_sinks, with_sinks

TILE_ROWS, PANEL_KEYS = 24, 64
"""ROWS and PANEL of attention.c, for the size of its working memory."""
LARGEST_WIDTH = 512
"""WIDEST of attention.c."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceTable:
    """The sequences of a packed micro-batch as attention.c reads them, costliest first."""

    rows: Int[Tensor, "U 5"]
    """Per sequence: first token, tokens, first token and number of its prompt's tokens that it sees (0 for a prompt),
    start of its shares."""
    shares: int
    """Prompt tokens that sequences have or see, one count for each: the gradients to add up."""
    longest: int
    """Largest number of keys of one sequence."""
    window: int
    """Number of keys that a token sees at most, up to its own; `longest` if it sees all."""


def sequence_table(
    prompt_lengths: Sequence[int],
    prompt_of_sample: Sequence[int],
    input_lengths: Sequence[int],
    window: int | None = None,
) -> SequenceTable:
    """Build the table of a micro-batch with these lengths, without completions that have no input tokens.

    `window`: a token at position p sees those at t with p - window < t <= p; None: all up to its own.
    """
    starts = [sum(prompt_lengths[:prompt]) for prompt in range(len(prompt_lengths))]
    sequences = [(start, length, 0, 0) for start, length in zip(starts, prompt_lengths, strict=True)]
    start = sum(prompt_lengths)
    for prompt, length in zip(prompt_of_sample, input_lengths, strict=True):
        if length:
            whole = prompt_lengths[prompt]
            seen = whole if window is None else min(whole, window - 1)
            sequences.append((start, length, starts[prompt] + whole - seen, seen))
        start += length
    sequences.sort(key=lambda sequence: -sequence[1] * (sequence[1] + 2 * sequence[3]))
    rows, shares = [], 0
    for first, length, prompt_start, prompt_length in sequences:
        rows.append((first, length, prompt_start, prompt_length, shares))
        shares += prompt_length or length
    longest = max(length + prompt_length for _, length, _, prompt_length in sequences)
    window = longest if window is None else min(window, longest)
    return SequenceTable(rows=torch.tensor(rows), shares=shares, longest=longest, window=window)


def attention_serves(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Return True if the kernel computes attention of this precision and head width."""
    fits = device.type == "cpu" and dtype in STORAGE and width % 16 == 0 and 0 < width <= LARGEST_WIDTH
    return fits and library().functions is not None


def packed_attention(  # noqa: PLR0913 - one kernel's tensors
    query: Float[Tensor, "M heads D"],
    key: Float[Tensor, "M kv_heads D"],
    value: Float[Tensor, "M kv_heads D"],
    table: SequenceTable,
    *,
    scale: float,
    rotation: tuple[Float[Tensor, "M D"], Float[Tensor, "M D"]] | None = None,
    cap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
) -> Float[Tensor, "M heads D"]:
    """Attend prompts causally to themselves, and completions to their prompt and causally to themselves.

    Query, key and value are float32 or bfloat16; all is computed in float32. heads / kv_heads query heads share a key.
    `rotation` has cosines and sines in float32 by which queries and keys are still to be turned, halves of a head
    paired (Llama's rotary embedding); None: they come turned. `cap`: scores are cap * tanh(score / cap). `sinks`: score
    per head of one more key, whose value is 0.
    """
    return cast(
        Tensor,
        _PackedAttention.apply(query, key, value, sinks, rotation or (None, None), table, scale, cap or 0.0),  # type: ignore[no-untyped-call]
    )


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0913 - one kernel's tensors
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None,
        rotation: tuple[Tensor, Tensor] | tuple[None, None],
        table: SequenceTable,
        scale: float,
        cap: float,
    ) -> Tensor:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        cosines, sines = rotation
        (tokens, heads, width), kv_heads = query.shape, key.shape[1]
        output, normalisers = torch.empty_like(query), query.new_empty(tokens, heads, dtype=torch.float32)
        keys = _padded_keys(table)
        threads, each, scratch = _scratch(2 * keys * width + TILE_ROWS * (keys + 2 * width))
        kernel("packed_attention", "pi iiiifif pp ppppp pii")(
            *(table.rows, len(table.rows), heads, kv_heads, width, query.dtype, scale, table.window, cap),
            *(cosines, sines),
            *(query, key, value, output, normalisers, scratch, each, threads),
        )
        if sinks is not None:
            output, normalisers = with_sinks(output, normalisers, sinks)
        ctx.save_for_backward(query, key, value, sinks, cosines, sines, output, normalisers)
        ctx.table, ctx.scale, ctx.cap = table, scale, cap
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, sinks, cosines, sines, output, normalisers = ctx.saved_tensors
        grad_output = grad_output.contiguous()
        (_, heads, width), kv_heads, table = query.shape, key.shape[1], ctx.table
        grads = [torch.empty_like(states) for states in (query, key, value)]
        shares = normalisers.new_empty(table.shares * kv_heads * 2 * width)
        threads, each, scratch = _scratch(5 * _padded_keys(table) * width + TILE_ROWS * (3 * width + 2 * PANEL_KEYS))
        kernel("packed_attention_backward", "pi iiiifif pp pppppp ppp ppii")(
            *(table.rows, len(table.rows), heads, kv_heads, width, query.dtype, ctx.scale, table.window, ctx.cap),
            *(cosines, sines, query, key, value, output, grad_output, normalisers),
            *(*grads, shares, scratch, each, threads),
        )
        grad_sinks = None if sinks is None else grad_of_sinks(grad_output, output, normalisers, sinks)
        return *grads, grad_sinks, None, None, None, None


def _padded_keys(table: SequenceTable) -> int:
    return -(-table.longest // PANEL_KEYS) * PANEL_KEYS


def _scratch(floats: int) -> tuple[int, int, Tensor]:
    """Return the number of threads, the floats for each, and working memory for all."""
    each = -(-floats // 32) * 32  # threads write to cache lines of their own
    threads = torch.get_num_threads()
    return threads, each, torch.empty(threads * each)
