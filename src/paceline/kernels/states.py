"""Packed sequences that carry a state: the row before each token, blocks of them, and convolutions along them.

    tokens       p0 p0 p0 p1 p1 | a a b c      completions a, b of p0 and c of p1, each going on from its prompt
    previous      -  0  1  -  3 | 2 5 2 4      row before each token's; -: none

M tokens, of Q prompts with at most L tokens and S completions with at most T inputs; row M is one of zeros.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class StateTable:
    """Order of packed tokens along their sequences; made once and used by every layer."""

    previous: Int[Tensor, " M_and_1"]
    """Row before each token's, in its own sequence or at its prompt's end; M where there is none."""
    prompts: Int[Tensor, "Q L"]
    """Rows of each prompt. Padding stands before it, where zeros leave a state of zeros as it is."""
    completions: Int[Tensor, "S T"]
    """Rows of each completion's inputs. Padding stands behind them, where nothing reads the state."""
    prompt_of_sample: Int[Tensor, " S"]
    unpad: Int[Tensor, " M"]
    """Place of each token in the flattened blocks: prompts, then completions."""


def state_table(
    prompt_lengths: Sequence[int], prompt_of_sample: Sequence[int], input_lengths: Sequence[int]
) -> StateTable:
    """Build the table of sequences that lie end to end, prompts first.

    >>> state_table([3, 2], [0, 0, 1], [2, 1, 1]).previous.tolist()
    [9, 0, 1, 9, 3, 2, 5, 2, 4, 9]
    """
    lengths = torch.tensor([*prompt_lengths, *input_lengths])
    ends, count, owners = lengths.cumsum(0), len(prompt_lengths), torch.tensor(prompt_of_sample)
    starts, nothing = (ends - lengths)[:, None], int(ends[-1])
    previous = torch.arange(-1, nothing)
    before = torch.cat([torch.full((count,), nothing), ends[owners] - 1])
    previous[starts[lengths > 0, 0]] = before[lengths > 0]
    previous[nothing] = nothing
    columns = [torch.arange(max(group)) for group in (prompt_lengths, input_lengths)]
    from_end = columns[0] - (len(columns[0]) - lengths[:count, None])
    prompts = torch.where(from_end >= 0, starts[:count] + from_end, nothing)
    completions = torch.where(columns[1] < lengths[count:, None], starts[count:] + columns[1], nothing)
    return StateTable(
        previous=previous,
        prompts=prompts,
        completions=completions,
        prompt_of_sample=owners,
        unpad=(torch.cat([prompts.flatten(), completions.flatten()]) < nothing).nonzero()[:, 0],
    )


def causal_convolution(
    states: Float[Tensor, "M D"],
    weight: Float[Tensor, "D k"],
    bias: Float[Tensor, " D"] | None,
    previous: Int[Tensor, " M_and_1"],
) -> Float[Tensor, "M D"]:
    """Weigh each token's row and the k - 1 before it, channel by channel; the last weight is the token's own.

    A sum of k products, in float32 at least, which is the same however the tokens are packed.
    """
    return cast(Tensor, _Convolution.apply(states, weight, bias, previous))  # type: ignore[no-untyped-call]


class _Convolution(torch.autograd.Function):
    """Keeps the states alone: torch's own operations would keep them once for each weight."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, previous: Tensor) -> Tensor:
        ctx.save_for_backward(states, weight, bias, previous)
        weight = _at_least_float32(weight)
        out = states * weight[:, -1]
        extended, rows = _with_zeros(states), previous[:-1]
        for tap in range(weight.shape[1] - 2, -1, -1):
            out += extended.index_select(0, rows) * weight[:, tap]
            rows = previous[rows]
        return out if bias is None else out + bias

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, bias, previous = ctx.saved_tensors
        grad, extended, rows = gradients[0], _with_zeros(states), previous[:-1]
        to_weight_dtype, weight = weight.dtype, _at_least_float32(weight)
        to_states = _with_zeros(grad * weight[:, -1])
        to_weight = [(grad * states).sum(0)]
        for tap in range(weight.shape[1] - 2, -1, -1):
            to_weight.append((grad * extended.index_select(0, rows)).sum(0))
            if grad.is_cuda:  # index_add_ is atomic there, so that bits would hang on time
                to_states.index_put_((rows,), grad * weight[:, tap], accumulate=True)
            else:
                to_states.index_add_(0, rows, grad * weight[:, tap])
            rows = previous[rows]
        return (
            to_states[:-1].to(states.dtype),
            torch.stack(to_weight[::-1], dim=1).to(to_weight_dtype),
            None if bias is None else grad.sum(0).to(bias.dtype),
            None,
        )


def _at_least_float32(weight: Tensor) -> Tensor:
    return weight.to(torch.promote_types(weight.dtype, torch.float32))


def _with_zeros(states: Tensor) -> Tensor:
    return torch.cat([states, states.new_zeros(1, *states.shape[1:])])
