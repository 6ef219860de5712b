"""Context parallelism: a rank has every n-th token of a micro-batch, and in attention all of them for 1/n of the heads.

                          rank 0                       rank 1
    between attentions    tokens 0 2 4, all heads      tokens 1 3 -, all heads
    in attention          tokens 0 to 4, heads 0 1     tokens 0 to 4, heads 2 3

Source: DeepSpeed-Ulysses, arXiv:2309.14509, section 3.1. It gives ranks runs of tokens; in turn, each has as many
of the prompts' tokens, which need no logits, and of the completions', which do.

M tokens, n ranks, m = M / n rounded up: a rank with one token fewer is padded with token 0, which is never read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.distributed as dist
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedConfig
from typing_extensions import override

from paceline.errors import ModelError
from paceline.models.parallel.process_group import lost
from paceline.models.rows import to_device
from paceline.objective.micro_batches import MicroBatch, sources_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """All-to-all between some tokens of all heads and all tokens of some heads; all ranks make the same calls.

    H heads of queries, K of keys and values, of widths D and E; h = H / n.
    """

    group: dist.ProcessGroup
    tokens: int
    """Tokens M of the whole micro-batch."""

    @property
    def ranks(self) -> int:
        """Number of ranks in the group."""
        return dist.get_world_size(self.group)

    def to_heads(
        self, query: Float[Tensor, "m H D"], key: Float[Tensor, "m K D"], value: Float[Tensor, "m K E"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [M, h, D], keys and values of all tokens for this rank's heads, by one all-to-all."""
        parts = [by_rank(states, self.ranks) for states in (query, key, value)]
        sent = torch.cat([part.flatten(2) for part in parts], dim=2)
        received: Tensor = _Exchanged.apply(sent, self, True)  # type: ignore[no-untyped-call]
        widths = [part.shape[2] * part.shape[3] for part in parts]
        query, key, value = (
            states.unflatten(1, part.shape[2:])
            for states, part in zip(received.split(widths, dim=1), parts, strict=True)
        )
        return query, key, value

    def to_tokens(self, states: Float[Tensor, "M h D"]) -> Float[Tensor, "m n_h D"]:
        """Return the output of all heads for this rank's tokens, from that of this rank's heads for all tokens."""
        received: Tensor = _Exchanged.apply(states.flatten(1), self, False)  # type: ignore[no-untyped-call]
        by_head: Tensor = received.unflatten(2, states.shape[1:]).flatten(1, 2)
        return by_head

    def own(self, numbers: Float[Tensor, " H"]) -> Float[Tensor, " h"]:
        """Return the numbers of this rank's query heads."""
        part: Tensor = numbers.unflatten(0, (self.ranks, -1))[dist.get_rank(self.group)]
        return part

    def swap(self, states: Tensor, *, to_heads: bool) -> Tensor:
        """Exchange [m, n, W], this rank's tokens by rank of the heads, for [M, W], all tokens; or the other way."""
        if not to_heads:
            states = pad(states, (0, 0, 0, -len(states) % self.ranks)).unflatten(0, (-1, self.ranks))
        sent = states.transpose(0, 1).contiguous()
        received = torch.empty_like(sent)
        with lost(f"rank {dist.get_rank()} was exchanging heads for tokens"):
            dist.all_to_all_single(received, sent, group=self.group)
        exchanged = received.transpose(0, 1)
        return exchanged.flatten(0, 1)[: self.tokens] if to_heads else exchanged


def by_rank(states: Float[Tensor, "m heads D"], ranks: int) -> Float[Tensor, "m n h D"]:
    """Deal heads to ranks; with fewer heads than ranks, several ranks get the same head."""
    heads = states.shape[1]
    if heads < ranks:
        states = states.repeat_interleave(ranks // heads, dim=1)
    dealt: Tensor = states.unflatten(1, (ranks, -1))
    return dealt


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, exchange: Exchange, to_heads: bool) -> Tensor:
        ctx.exchange, ctx.to_heads = exchange, to_heads
        return exchange.swap(states, to_heads=to_heads)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.exchange.swap(gradients[0], to_heads=not ctx.to_heads), None, None


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The tokens of a micro-batch that a rank computes: here, all of them."""

    batch: MicroBatch
    """The micro-batch with this rank's input tokens and targets; lengths of sequences count all tokens."""
    exchange: Exchange | None = None
    """Exchange by which attention sees all tokens; None: this rank has them."""

    def join(self, logprobs: Float[Tensor, " N_here"], entropy: Float[Tensor, " N_here"]) -> tuple[Tensor, Tensor]:
        """Gather the values of all N targets from all ranks, so that every rank computes the same loss."""
        return logprobs, entropy


@dataclass(frozen=True, kw_only=True)
class SomeTokens(Tokens):
    """Tokens of a rank that has every n-th token outside attention."""

    exchange: Exchange
    """Exchange with the ranks that have the other tokens."""
    mine: Int[Tensor, " N_here"]
    """Indices of this rank's targets among all N."""
    places: Int[Tensor, " N"]
    """Index of each target in the ranks' targets, each padded to the longest and concatenated."""
    longest: int
    """Number of targets of the rank with the most."""

    @override
    def join(self, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, Tensor]:
        return cast(tuple[Tensor, Tensor], _Joined.apply(logprobs, entropy, self))  # type: ignore[no-untyped-call]


class _Joined(torch.autograd.Function):
    """All-gather of targets' values. Every rank computes the same loss, so backward takes this rank's part."""

    @staticmethod
    def forward(ctx: Any, logprobs: Tensor, entropy: Tensor, tokens: SomeTokens) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)  # an entropy that nothing is asked of must cost nothing
        ctx.mine = tokens.mine
        padded = pad(torch.stack([logprobs, entropy]), (0, tokens.longest - len(logprobs)))
        parts = [torch.empty_like(padded) for _ in range(tokens.exchange.ranks)]
        with lost(f"rank {dist.get_rank()} was exchanging logprobs"):
            dist.all_gather(parts, padded, group=tokens.exchange.group)
        joined = torch.cat(parts, dim=1)[:, tokens.places]
        return joined[0], joined[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        logprobs, entropy = (None if gradient is None else gradient[ctx.mine] for gradient in gradients)
        return logprobs, entropy, None


def some_tokens(batch: MicroBatch, group: dist.ProcessGroup) -> SomeTokens:
    """Return this rank's part of a micro-batch, without waiting for the device."""
    ranks, rank, device = dist.get_world_size(group), dist.get_rank(group), batch.input_ids.device
    sources = sources_of(batch.prompt_lengths, batch.prompt_of_sample, batch.input_lengths, batch.runs)

    def every(tokens: Shaped[Tensor, "M ..."]) -> Shaped[Tensor, "m ..."]:
        return pad(tokens, (0, 0) * (tokens.dim() - 1) + (0, -len(tokens) % ranks))[rank::ranks]

    mine, places, longest = deal(sources, ranks, rank)
    rows = to_device(torch.tensor([sources[target] // ranks for target in mine], dtype=torch.int64), device)
    targets = to_device(torch.tensor(mine, dtype=torch.int64), device)
    return SomeTokens(
        batch=replace(
            batch,
            input_ids=every(batch.input_ids),
            position_ids=every(batch.position_ids),
            sources=rows,
            targets=batch.targets[targets],
            routes=None if batch.routes is None else every(batch.routes),
        ),
        exchange=Exchange(group=group, tokens=len(batch.input_ids)),
        mine=targets,
        places=to_device(torch.tensor(places), device),
        longest=longest,
    )


def deal(sources: Sequence[int], ranks: int, rank: int) -> tuple[list[int], list[int], int]:
    """Deal targets to the ranks that have their source tokens.

    Returns:
        This rank's targets; the index of each target in all ranks' targets, padded to the longest; the longest length.

    >>> deal([1, 2, 3, 1], ranks=2, rank=1)
    ([0, 2, 3], [3, 0, 4, 5], 3)
    """
    dealt, numbers = [list[int]() for _ in range(ranks)], list[int]()
    for target, source in enumerate(sources):
        numbers.append(len(dealt[source % ranks]))
        dealt[source % ranks].append(target)
    longest = max(map(len, dealt))
    places = [source % ranks * longest + number for source, number in zip(sources, numbers, strict=True)]
    return dealt[rank], places, longest


def context_sizes(config: PreTrainedConfig, *, tensor: int = 1) -> list[int]:
    """Return the context sizes that divide a tensor rank's attention heads and fit its key/value heads.

    A size fits if it divides the key/value heads or is a multiple of them.
    """
    query, key_value = _heads(config, tensor)
    return [
        size for size in range(1, query + 1) if query % size == 0 and (key_value % size == 0 or size % key_value == 0)
    ]


def check_context_size(config: PreTrainedConfig, size: int, *, tensor: int = 1) -> None:
    """Refuse a context size that the heads cannot be divided by, with a ModelError that names the nearest sizes."""
    sizes = context_sizes(config, tensor=tensor)
    if size in sizes:
        return
    query, key_value = _heads(config, tensor)
    near = [divisor for divisor in sizes if divisor < size][-1:] + [divisor for divisor in sizes if divisor > size][:1]
    where = f" on each of {tensor} tensor ranks" if tensor > 1 else ""
    raise ModelError(
        f"a context size of {size} must divide what the model has{where}: {query} attention heads, and divide or be a "
        f"multiple of its {key_value} key/value heads; the nearest that does is {' or '.join(map(str, near))}"
    )


def _heads(config: PreTrainedConfig, tensor: int) -> tuple[int, int]:
    """Return the attention and key/value heads of each of `tensor` ranks, which may share a key/value head."""
    text = config.get_text_config()
    query = text.num_attention_heads
    key_value = getattr(text, "num_key_value_heads", None) or query
    if not isinstance(query, int) or not isinstance(key_value, int):
        raise ModelError(
            f"a {text.model_type} model cannot be dealt out over a context axis, because its layers differ in their "
            "heads; use a context size of 1"
        )
    return query // tensor, max(1, key_value // tensor)
