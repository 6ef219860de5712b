"""The exchange of context parallelism: some tokens and all heads for all tokens and some heads; see `context`.

M tokens, n ranks, m = M / n rounded up.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from paceline.models.parallel.process_group import lost


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """From some tokens and all heads to all tokens and some heads, and back; all ranks make the same calls.

    H heads of queries, K of keys and values, of widths D and E; h = H / n.
    """

    group: dist.ProcessGroup
    tokens: int
    """M, of the whole micro-batch."""

    @property
    def ranks(self) -> int:
        """Size of the group."""
        return dist.get_world_size(self.group)

    def to_heads(
        self, query: Float[Tensor, "m H D"], key: Float[Tensor, "m K D"], value: Float[Tensor, "m K E"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return all tokens' queries [M, h, D], keys and values of this rank's heads, sent in one message."""
        parts = [by_rank(states, self.ranks) for states in (query, key, value)]
        sent = torch.cat([part.flatten(2) for part in parts], dim=2)
        found: Tensor = _Exchanged.apply(sent, self, True)  # type: ignore[no-untyped-call]
        widths = [part.shape[2] * part.shape[3] for part in parts]
        query, key, value = (
            states.unflatten(1, part.shape[2:]) for states, part in zip(found.split(widths, dim=1), parts, strict=True)
        )
        return query, key, value

    def to_tokens(self, states: Float[Tensor, "M h D"]) -> Float[Tensor, "m n_h D"]:
        """Return what all heads found for this rank's tokens, from what its heads found for all tokens."""
        found: Tensor = _Exchanged.apply(states.flatten(1), self, False)  # type: ignore[no-untyped-call]
        by_head: Tensor = found.unflatten(2, states.shape[1:]).flatten(1, 2)
        return by_head

    def swap(self, states: Tensor, *, to_heads: bool) -> Tensor:
        """Send [m, n, W], of own tokens for each rank's heads, and get [M, W], of all tokens for own heads; or back."""
        if not to_heads:
            states = pad(states, (0, 0, 0, -len(states) % self.ranks)).unflatten(0, (-1, self.ranks))
        sent = states.transpose(0, 1).contiguous()
        received = torch.empty_like(sent)
        with lost(f"rank {dist.get_rank()} was exchanging heads for tokens"):
            dist.all_to_all_single(received, sent, group=self.group)
        found = received.transpose(0, 1)
        return found.flatten(0, 1)[: self.tokens] if to_heads else found


def by_rank(states: Float[Tensor, "m heads D"], ranks: int) -> Float[Tensor, "m n h D"]:
    """The heads that each rank computes with; where there are fewer than ranks, several are given the same one."""
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
