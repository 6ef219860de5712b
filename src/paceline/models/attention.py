"""Attention over packed micro-batches, registered with transformers so that any of its decoders can run it.

A forward pass that carries `packed_attention` uses it; every other call (generation, padded rows) goes to
transformers' own scaled-dot-product attention, masks included.

A variable-length kernel needs two calls, and copies no key:

    tokens       p0 p0 p0 p1 p1 | a a a b b c c c c      completions a, b of p0 and c of p1
    sequences    \\_____/ \\___/   \\___/ \\_/ \\_____/       every sequence causally over itself
    prompts                       \\_______/ \\_____/       a group's completions over its prompt's keys, all of them

The second call reads a prompt's keys once for all completions of the group. Both are put together by their logsumexps.
Where a layer looks back over a window, each completion is given a copy of the few prompt tokens that it sees, in one
call. A layer's options come with the call: window, cap of the scores, sinks (per head the score of one more key, whose
value is 0). torch's operators for CUDA have no cap: there such a layer attends in padded blocks.
M tokens, of which X belong to completions, H query heads, K key/value heads, D head width.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from paceline.errors import ModelError
from paceline.kernels.cpu.attention import SequenceTable, attention_serves, packed_attention, sequence_table
from paceline.kernels.flash_attention import (
    AttentionKernel,
    FlashKernel,
    Spans,
    flash_problem,
    grad_of_sinks,
    merged,
    with_sinks,
)
from paceline.kernels.states import StateTable, state_table
from paceline.models.dense_attention import attention_in_rows, dense_attention
from paceline.models.parallel.context import Exchange
from paceline.models.rows import on_device, take_rows, to_device
from paceline.objective.micro_batches import MicroBatch, PaddedAttention, padded_attention

NAME = "paceline"

HEEDED = frozenset({"scaling", "position_ids", "is_causal"})
"""Options of transformers' attention interface that packed attention supports or can ignore."""

NO_MASK = torch.ones(1, 1, 1, 1, dtype=torch.bool)
"""Passed as attention mask with packed batches: four dimensions keep transformers from building an M x M mask."""


TokenRows = slice | Tensor
"""Indices of packed tokens, or a slice if they are contiguous, so that nothing is copied."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VarlenLayout:
    """Spans of a micro-batch's sequences; made once and used by every layer."""

    sequences: Spans
    """Every sequence, causally over itself."""
    prompts: Spans | None
    """Completion inputs of each prompt over the prompt's keys; None if no prompt has any."""
    queries: TokenRows
    """The X completion inputs, prompt by prompt."""
    keys: TokenRows
    """Tokens of the prompts that have completion inputs."""
    copied: TokenRows | None = None
    """Tokens whose keys `sequences` has, where a completion's are copies of its prompt's last ones and its own; None:
    all tokens, each once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerCall:
    """What a layer asks of attention."""

    layer: int | None
    """Number of the layer; None: its attention does not say."""
    window: int | None
    cap: float | None
    has_sinks: bool
    heads: tuple[int, int]
    """Query heads, key/value heads."""
    widths: tuple[int, int]
    """Widths of a head's keys and values."""
    scaling: float


@dataclass(frozen=True, kw_only=True)
class PackedLayout:
    """Layout of a micro-batch's sequences, for all layers of a forward pass; each form is made when first used."""

    batch: MicroBatch
    exchange: Exchange | None = None
    """Exchange by which a rank with some of the tokens attends to all of them; None: it has all."""
    window: int | None = None
    """A token at position p sees those at t with p - window < t <= p; None: all up to its own."""
    calls: list[LayerCall] | None = None
    """Where each layer's call is noted; None: nowhere."""
    served: list[str] = field(default_factory=list)
    """What layers have asked for: attention, convolution or scan."""
    windows: dict[int, "PackedLayout"] = field(default_factory=dict)
    """The layout for layers with a window, by the window."""

    @functools.cached_property
    def longest(self) -> int:
        """Number of tokens of the longest sequence, its prompt included."""
        batch = self.batch
        completions = zip(batch.prompt_of_sample, batch.input_lengths, strict=True)
        return max(*batch.prompt_lengths, *(batch.prompt_lengths[prompt] + length for prompt, length in completions))

    def within(self, window: int | None) -> "PackedLayout":
        """Return the layout for a layer with this window: the one without, if the window holds every sequence."""
        if window is None or window >= self.longest:
            return self
        if window not in self.windows:
            self.windows[window] = replace(self, window=window, windows={})
        return self.windows[window]

    @functools.cached_property
    def table(self) -> SequenceTable:
        """Layout for the kernel of a CPU."""
        batch = self.batch
        return sequence_table(batch.prompt_lengths, batch.prompt_of_sample, batch.input_lengths, self.window)

    @functools.cached_property
    def varlen(self) -> VarlenLayout:
        """Layout for a variable-length kernel on the batch's device."""
        return varlen_layout(self.batch, self.batch.input_ids.device, self.window)

    @functools.cached_property
    def padded(self) -> PaddedAttention:
        """Layout for torch's attention, on the batch's device."""
        return on_device(padded_attention(self.batch, self.window), self.batch.input_ids.device)

    @functools.cached_property
    def states(self) -> StateTable:
        """Layout for layers that carry a state, on the batch's device."""
        table = state_table(self.batch.prompt_lengths, self.batch.prompt_of_sample, self.batch.input_lengths)
        return on_device(table, self.batch.input_ids.device)


def attention(  # noqa: PLR0913 - transformers' interface, and the options of it that are heeded
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packed_attention: PackedLayout | None = None,
    *,
    sliding_window: int | None = None,
    s_aux: Float[Tensor, " heads"] | None = None,
    softcap: float | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """Run transformers' attention interface: query [1, heads, M, D], key and value [1, kv heads, M, D], all packed.

    Returns the output as [1, M, heads, D], and no attention weights. ModelError: the layer sets an option that packed
    attention does not have, such as a bias of the scores.
    """
    if packed_attention is None:
        if s_aux is None and softcap is None:
            return sdpa_attention_forward(module, query, key, value, attention_mask, **options)  # type: ignore[arg-type]
        # transformers' own would drop the sinks without a word, and refuses the cap; a window is in the mask
        if options.get("dropout"):
            raise ModelError(f"{type(module).__name__} sets dropout, which attention with sinks or a cap does not have")
        scores = (cast(float, options["scaling"]), softcap, s_aux)
        return attention_in_rows(query, key, value, attention_mask, *scores), None
    packed_attention.served.append("attention")
    for name, option in options.items():
        is_set = isinstance(option, Tensor) or bool(option)
        if (option is False and name == "is_causal") or (is_set and name not in HEEDED):
            raise ModelError(f"{type(module).__name__} sets {name}, which packed attention does not have")
    scaling = options["scaling"]
    assert isinstance(scaling, float)  # as all of transformers' decoders give it
    if packed_attention.calls is not None:
        call = LayerCall(
            layer=getattr(module, "layer_idx", None),
            window=sliding_window,
            cap=softcap,
            has_sinks=s_aux is not None,
            heads=(query.shape[1], key.shape[1]),
            widths=(key.shape[-1], value.shape[-1]),
            scaling=scaling,
        )
        packed_attention.calls.append(call)
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    layout = packed_attention.within(sliding_window)
    return attend(query, key, value, layout, scaling, cap=softcap, sinks=s_aux)[None], None


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: PackedLayout,
    scaling: float,
    *,
    cap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
) -> Tensor:
    """Attend from query [M, heads, D] to key [M, kv heads, D] and value [M, kv heads, E]; return [M, heads, E].

    Prompts attend causally to themselves; completions to their prompt's keys and to their own. If ranks share the
    tokens, M counts this rank's, and the rank computes some of the heads for all tokens.
    """
    kind = query.device.type
    if torch.is_autocast_enabled(kind):
        query, key, value = (states.to(torch.get_autocast_dtype(kind)) for states in (query, key, value))
    if layout.exchange is not None:
        query, key, value = layout.exchange.to_heads(query, key, value)
        sinks = None if sinks is None else layout.exchange.own(sinks)
    heads, width, windowed = (query.shape[1], key.shape[1]), query.shape[-1], layout.window is not None
    is_even = width == value.shape[-1]  # as the kernels take it
    is_flash = is_even and kind == "cuda" and cap is None  # torch's operators have no cap
    if is_even and attention_serves(query.device, query.dtype, width):
        output = packed_attention(query, key, value, layout.table, scale=scaling, cap=cap, sinks=sinks)
    elif is_flash and flash_problem(query.device, query.dtype, heads, width, windowed=windowed) is None:
        output = varlen_attention(query, key, value, layout.varlen, scaling, FlashKernel(), sinks)
    elif kind != "cpu" or query.dtype != torch.bfloat16:
        output = _padded(query, key, value, layout.padded, scaling, cap, sinks)
    else:  # torch's masked attention takes twice as long to go back in bfloat16 as in float32
        with torch.autocast("cpu", enabled=False):
            states = (query.float(), key.float(), value.float())
            output = _padded(*states, layout.padded, scaling, cap, sinks).to(query.dtype)
    return output if layout.exchange is None else layout.exchange.to_tokens(output)


def _padded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: PaddedAttention,
    scaling: float,
    cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend in two padded blocks: the prompts, whose keys are computed once, and the completions."""

    def attended(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        if cap is not None or sinks is not None:
            return dense_attention(query, key, value, mask, scaling, cap, sinks)
        grouped = query.shape[1] != key.shape[1]
        return scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
        )

    queries, keys, values = (take_rows(states, layout.prompt_index).transpose(1, 2) for states in (query, key, value))
    prompts = attended(queries, keys, values, layout.prompt_mask)
    completion_states = (take_rows(states, layout.completion_index).transpose(1, 2) for states in (query, key, value))
    own_queries, own_keys, own_values = completion_states
    completions = attended(
        own_queries,
        torch.cat([take_rows(keys, layout.prompt_of_sample), own_keys], dim=2),
        torch.cat([take_rows(values, layout.prompt_of_sample), own_values], dim=2),
        layout.mask,
    )
    blocks = [prompts.transpose(1, 2).flatten(0, 1), completions.transpose(1, 2).flatten(0, 1)]
    return torch.cat(blocks)[layout.unpad]


def varlen_layout(batch: MicroBatch, device: torch.device, window: int | None = None) -> VarlenLayout:
    """Make the layout of a micro-batch for layers of one window, without waiting for the device."""
    lengths = [length for length in (*batch.prompt_lengths, *batch.input_lengths) if length]
    prompt_starts = [0, *accumulate(batch.prompt_lengths)]
    starts = list(accumulate(batch.input_lengths, initial=prompt_starts[-1]))
    if window is not None:
        seen: list[Sequence[int]] = [range(*ends) for ends in pairwise(prompt_starts)]
        for prompt, start, length in zip(batch.prompt_of_sample, starts, batch.input_lengths, strict=False):
            if length:
                end = prompt_starts[prompt + 1]
                behind = min(window - 1, batch.prompt_lengths[prompt])
                seen.append([*range(end - behind, end), *range(start, start + length)])
        return VarlenLayout(
            sequences=_spans(lengths, list(map(len, seen)), device, causal=True, window=window),
            prompts=None,
            queries=slice(0, 0),
            keys=slice(0, 0),
            copied=_rows([token for tokens in seen for token in tokens], device),
        )
    inputs = [0] * len(batch.prompt_lengths)
    for prompt, length in zip(batch.prompt_of_sample, batch.input_lengths, strict=True):
        inputs[prompt] += length
    asked = [prompt for prompt, length in enumerate(inputs) if length]
    queries, keys = [inputs[prompt] for prompt in asked], [batch.prompt_lengths[prompt] for prompt in asked]
    by_prompt = sorted(range(len(batch.input_lengths)), key=lambda sample: batch.prompt_of_sample[sample])
    of_completions = [starts[sample] + index for sample in by_prompt for index in range(batch.input_lengths[sample])]
    of_prompts = [token for prompt in asked for token in range(*prompt_starts[prompt : prompt + 2])]
    return VarlenLayout(
        sequences=_spans(lengths, lengths, device, causal=True),
        prompts=_spans(queries, keys, device, causal=False) if asked else None,
        queries=_rows(of_completions, device),
        keys=_rows(of_prompts, device),
    )


def _spans(
    queries: list[int], keys: list[int], device: torch.device, *, causal: bool, window: int | None = None
) -> Spans:
    starts = [torch.tensor([0, *accumulate(lengths)], dtype=torch.int32) for lengths in (queries, keys)]
    return Spans(
        queries=to_device(starts[0], device),
        keys=to_device(starts[1], device),
        # for one query per sequence the kernel takes a path of its own, made for decoding
        most_queries=max(2, *queries),
        most_keys=max(keys),
        causal=causal,
        window=window,
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
    sinks: Float[Tensor, " H"] | None = None,
) -> Float[Tensor, "M H D"]:
    """Attend prompts causally to themselves; completions to their prompt and, causally, to themselves.

    Computed in the precision of `value`: under autocast, rotary embeddings leave queries and keys in float32.
    """
    query, key = query.to(value.dtype), key.to(value.dtype)
    if isinstance(layout.copied, Tensor):
        key, value = take_rows(key, layout.copied), take_rows(value, layout.copied)
    return cast(Tensor, _VarlenAttention.apply(query, key, value, sinks, layout, scaling, kernel))  # type: ignore[no-untyped-call]


class _VarlenAttention(torch.autograd.Function):
    """Two calls of a kernel, merged. By the logsumexp of the whole, each call's gradient is its part of the total."""

    @staticmethod
    def forward(  # noqa: PLR0913 - one kernel's tensors
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None,
        layout: VarlenLayout,
        scaling: float,
        kernel: AttentionKernel,
    ) -> Tensor:
        out, normaliser = kernel.forward(query, key, value, layout.sequences, scaling)
        if layout.prompts is not None:
            own = (out[layout.queries], normaliser[:, layout.queries])
            states = (query[layout.queries], key[layout.keys], value[layout.keys])
            prompts = kernel.forward(*states, layout.prompts, scaling)
            out[layout.queries] = merged(own, prompts)
            normaliser[:, layout.queries] = torch.logaddexp(own[1], prompts[1])
        if sinks is not None:
            out, by_token = with_sinks(out, normaliser.T, sinks)
            normaliser = by_token.T.contiguous()
        ctx.save_for_backward(query, key, value, sinks, out, normaliser)
        ctx.layout, ctx.scaling, ctx.kernel = layout, scaling, kernel
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, sinks, out, normaliser = ctx.saved_tensors
        layout, grad = ctx.layout, gradients[0].contiguous()
        grads = ctx.kernel.backward(grad, (query, key, value), (out, normaliser), layout.sequences, ctx.scaling)
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
        grad_sinks = None if sinks is None else grad_of_sinks(grad, out, normaliser.T, sinks)
        return *grads, grad_sinks, None, None, None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
