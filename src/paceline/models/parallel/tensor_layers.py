"""Tensor-parallel layers and their collectives; logprobs from logits that are split over the vocabulary.

    x ──┬─▶ column ─▶ own heads, own width ─▶ row ──┬─▶ y          two meetings in each block, one in each direction:
        └ gradients are added up                    └ products are added up

Source: Megatron-LM, arXiv:1909.08053, section 3 (its f and g). M tokens, H hidden width.

Weights stay parameters of the whole layer's name and shape, as DTensors; each rank computes with its local part. A
layer's class is replaced in place, as by `linear.ProductLinear`. Of logits, row sums are exchanged: R tokens of a
chunk, S ranks, V / S logits on each.
"""

import functools
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from paceline.kernels.linear import best_linear
from paceline.kernels.logprobs import Gradients, LogitPasses, from_row_sums, row_sums, to_gradients
from paceline.models.parallel.process_group import lost

AXIS = "tensor"
_Base = nn.Module if TYPE_CHECKING else object


class _Shared(torch.autograd.Function):
    """Identity in the forward pass; all-reduces the gradient (Megatron's f)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _sum(gradients[0], ctx.group), None


class _Summed(torch.autograd.Function):
    """All-reduce in the forward pass; identity in the backward pass (Megatron's g)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return _sum(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def _sum(part: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = part.clone(memory_format=torch.contiguous_format)  # a gradient may be another node's too
    with lost(f"rank {dist.get_rank()} was adding up parts of a layer"):
        dist.all_reduce(total, group=group)
    return total


def shared(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return `x`, which is the same on all ranks; its gradient is summed over the group."""
    return cast(Tensor, _Shared.apply(x, group))  # type: ignore[no-untyped-call]


def summed(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the sum of the ranks' `x`, the same bits on all of them."""
    return cast(Tensor, _Summed.apply(x, group))  # type: ignore[no-untyped-call]


def is_part(parameter: Tensor) -> bool:
    """Return whether a parameter is split over the tensor axis."""
    return isinstance(parameter, DTensor) and AXIS in (parameter.device_mesh.mesh_dim_names or ())


class ColumnLinear(nn.Linear):
    """A linear layer with some of its outputs on this rank."""

    def forward(self, input: Tensor) -> Tensor:
        """[*rows, in] to [*rows, out / ranks]."""
        return best_linear(input, _here(self.weight), None if self.bias is None else _here(self.bias))


class RowLinear(nn.Linear):
    """A linear layer with some of its inputs on this rank; the bias is whole, and added after the sum."""

    def forward(self, input: Tensor) -> Tensor:
        """[*rows, in / ranks] to [*rows, out]."""
        total = summed(best_linear(input, _here(self.weight), None), _group(self.weight))
        return total if self.bias is None else total + self.bias.to(total.dtype)


class PartialGradients:
    """Mixin of a module that every rank has whole and uses for its part: its gradients need a sum over ranks."""


class HeadLinear(PartialGradients, nn.Linear):
    """A linear layer that every rank has whole, with the outputs of one key/value head computed on several ranks."""

    rows: slice

    def forward(self, input: Tensor) -> Tensor:
        """[*rows, in] to [*rows, out of one key/value head]."""
        return best_linear(input, self.weight[self.rows], None if self.bias is None else self.bias[self.rows])


class VocabularyEmbedding(nn.Embedding):
    """An embedding with the rows of some tokens on this rank; a sum over ranks brings the others."""

    def forward(self, input: Tensor) -> Tensor:
        """Tokens [*rows] to [*rows, H]."""
        rows, rank = _here(self.weight), cast(DTensor, self.weight).device_mesh.get_local_rank(AXIS)
        index, is_here = own_rows(input, len(rows), rank)
        padding = -1 if self.padding_idx is None else self.padding_idx - rank * len(rows)
        rows_here = F.embedding(index, rows, padding if padding in range(len(rows)) else None)
        return summed(rows_here.masked_fill(~is_here[..., None], 0.0), _group(self.weight))


def own_rows(tokens: Tensor, rows: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return tokens' indices among the `rows` of a rank, 0 for tokens of other ranks, and which are this rank's."""
    index = tokens - rank * rows
    is_here = (index >= 0) & (index < rows)
    return index.where(is_here, 0), is_here


class Block(_Base):  # type: ignore[misc]  # nn.Module where types are checked
    """Mixin of a module whose column layers share an input: attention, or the feed-forward layers.

    The input's gradient is summed over ranks once, for all of them.
    """

    tensor_axis: DeviceMesh

    def forward(self, hidden_states: Tensor, *others: Any, **options: Any) -> Any:
        """Run the module's forward pass on the shared input."""
        return super().forward(shared(hidden_states, self.tensor_axis.get_group()), *others, **options)


class ExpertsBlock(_Base):  # type: ignore[misc]  # nn.Module where types are checked
    """Mixin of experts of which some are on this rank, each whole. All ranks have the same tokens and routes."""

    tensor_axis: DeviceMesh

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Return the sum over ranks of what each one's experts give."""
        group = self.tensor_axis.get_group()
        own: Tensor = super().forward(shared(hidden_states, group), top_k_index, shared(top_k_weights, group))
        return summed(own, group)


@functools.cache
def combined(*bases: type) -> type[Any]:
    """Return a class with these bases, in this order."""
    return type("".join(base.__name__ for base in bases), bases, {})


def _here(parameter: Tensor) -> Tensor:
    return cast(DTensor, parameter).to_local()


def _group(parameter: Tensor) -> dist.ProcessGroup:
    return cast(DTensor, parameter).device_mesh.get_group(AXIS)


def vocabulary_passes(group: dist.ProcessGroup) -> LogitPasses:
    """Return passes over logits of V / S tokens per rank, in the order of ranks; results are the same bits on all."""
    rank = dist.get_rank(group)

    def statistics(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        index, _ = own_rows(targets, logits.shape[1], rank)
        sums = torch.stack(row_sums(logits, index, temperature))
        parts = [torch.empty_like(sums) for _ in range(dist.get_world_size(group))]
        with lost(f"rank {dist.get_rank()} was adding up probabilities"):
            dist.all_gather(parts, sums, group=group)
        owners = targets // logits.shape[1]
        return from_row_sums(*add_row_sums(torch.stack(parts), owners, temperature), temperature)

    def own_gradients(
        logits: Tensor, targets: Tensor, normalisers: Tensor, entropy: Tensor, gradients: Gradients, temperature: float
    ) -> None:
        index, is_here = own_rows(targets, logits.shape[1], rank)
        to_gradients(logits, index, normalisers, entropy, gradients, temperature, is_here=is_here)

    return LogitPasses(statistics=statistics, to_gradients=own_gradients)


def add_row_sums(parts: Tensor, owners: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Combine `row_sums` of parts [S, 4, R] to those of whole rows [R]; `owners`: rank with each row's target."""
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
