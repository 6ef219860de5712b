"""Logprobs and entropies where each rank has the logits of its own tokens: sums meet, logits never do.

R tokens of a chunk, S ranks, V / S logits on each.
"""

import functools

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.kernels.logprobs import Gradients, LogitPasses, from_row_sums, row_sums, to_gradients
from paceline.models.parallel.process_group import lost
from paceline.models.parallel.tensor_layers import own_rows


def vocabulary_passes(group: dist.ProcessGroup) -> LogitPasses:
    """Passes over the logits of a rank's tokens, V / S tokens in the order of ranks; all ranks find the same bits."""
    return LogitPasses(
        statistics=functools.partial(_statistics, group), to_gradients=functools.partial(_to_gradients, group)
    )


def _statistics(
    group: dist.ProcessGroup, logits: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    index, _ = own_rows(targets, logits.shape[1], dist.get_rank(group))
    own = torch.stack(row_sums(logits, index, temperature))
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    with lost(f"rank {dist.get_rank()} was adding up probabilities"):
        dist.all_gather(parts, own, group=group)
    owners = targets // logits.shape[1]
    return from_row_sums(*add_row_sums(torch.stack(parts), owners, temperature), temperature)


def add_row_sums(parts: Tensor, owners: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`row_sums` of whole rows [R] from those of their parts [S, 4, R]; `owners`: whose part a row's target is in."""
    tops, totals, weighted, chosen = parts.unbind(1)
    top = tops.amax(0)
    below = (tops - top) / temperature
    factors = below.exp()
    return (
        top,
        (totals * factors).sum(0),
        ((weighted + below * totals) * factors).sum(0),
        (chosen + below).gather(0, owners[None])[0],
    )


def _to_gradients(
    group: dist.ProcessGroup,
    logits: Tensor,
    targets: Tensor,
    normalisers: Tensor,
    entropy: Tensor,
    gradients: Gradients,
    temperature: float,
) -> None:
    index, is_here = own_rows(targets, logits.shape[1], dist.get_rank(group))
    to_gradients(logits, index, normalisers, entropy, gradients, temperature, is_here=is_here)
