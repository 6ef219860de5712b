"""Layers of which a rank has some rows or columns, and where their parts meet; logprobs where it has some logits.

    x ──┬─▶ column ─▶ own heads, own width ─▶ row ──┬─▶ y          two meetings in each block, one in each direction:
        └ gradients are added up                    └ products are added up

Source: Megatron-LM, arXiv:1909.08053, section 3 (its f and g). M tokens, H hidden width.

Weights stay parameters of the whole layer's name and shape, as DTensors; what is computed with is the part that is
here. A layer takes one of these classes in place, as it does `linear.ProductLinear`. Of logits, sums meet: R tokens of
a chunk, S ranks, V / S logits on each.
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
    """The same on every rank, which each uses for a part: the gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _sum(gradients[0], ctx.group), None


class _Summed(torch.autograd.Function):
    """The sum of the ranks' parts, which is the same on every rank, and so is its gradient."""

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
    """`x` itself, which is the same on all ranks of the group; they contribute to its gradient."""
    return cast(Tensor, _Shared.apply(x, group))  # type: ignore[no-untyped-call]


def summed(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of the ranks' `x`, bit for bit the same on all of them."""
    return cast(Tensor, _Summed.apply(x, group))  # type: ignore[no-untyped-call]


def is_part(parameter: Tensor) -> bool:
    """Return whether the tensor axis left only a part of it here."""
    return isinstance(parameter, DTensor) and AXIS in (parameter.device_mesh.mesh_dim_names or ())


class ColumnLinear(nn.Linear):
    """A linear layer with a part of its outputs."""

    def forward(self, input: Tensor) -> Tensor:
        """[*rows, in] to [*rows, out / ranks]."""
        return best_linear(input, _here(self.weight), None if self.bias is None else _here(self.bias))


class RowLinear(nn.Linear):
    """A linear layer with a part of its inputs; the bias is whole, and is added once."""

    def forward(self, input: Tensor) -> Tensor:
        """[*rows, in / ranks] to [*rows, out]."""
        total = summed(best_linear(input, _here(self.weight), None), _group(self.weight))
        return total if self.bias is None else total + self.bias.to(total.dtype)


class PartialGradients:
    """Put before the class of a module that every rank has whole and uses for its part: its gradients are still to be
    added up."""


class HeadLinear(PartialGradients, nn.Linear):
    """A linear layer that every rank has whole and computes some outputs of, which other ranks compute as well."""

    rows: slice

    def forward(self, input: Tensor) -> Tensor:
        """[*rows, in] to [*rows, out of one key/value head]."""
        return best_linear(input, self.weight[self.rows], None if self.bias is None else self.bias[self.rows])


class VocabularyEmbedding(nn.Embedding):
    """An embedding with the rows of some tokens; those of others are zeros here, and come from the other ranks."""

    def forward(self, input: Tensor) -> Tensor:
        """Tokens [*rows] to [*rows, H]."""
        rows, place = _here(self.weight), cast(DTensor, self.weight).device_mesh.get_local_rank(AXIS)
        index, is_here = own_rows(input, len(rows), place)
        padding = -1 if self.padding_idx is None else self.padding_idx - place * len(rows)
        found = F.embedding(index, rows, padding if padding in range(len(rows)) else None)
        return summed(found.masked_fill(~is_here[..., None], 0.0), _group(self.weight))


def own_rows(tokens: Tensor, rows: int, place: int) -> tuple[Tensor, Tensor]:
    """Where tokens stand among the `rows` tokens of the rank at this place, and which do; elsewhere the index is 0."""
    index = tokens - place * rows
    is_here = (index >= 0) & (index < rows)
    return index.where(is_here, 0), is_here


class Block(_Base):  # type: ignore[misc]  # nn.Module where types are checked
    """Put before the class of a module whose column layers share an input: attention, or the feed-forward layers.

    The input's gradient is added up once, behind the gradients of all of them.
    """

    tensor_axis: DeviceMesh

    def forward(self, hidden_states: Tensor, *others: Any, **options: Any) -> Any:
        """As the module's own."""
        return super().forward(shared(hidden_states, self.tensor_axis.get_group()), *others, **options)


@functools.cache
def combined(*bases: type) -> type[Any]:
    """A class of these, the first of which comes first."""
    return type("".join(base.__name__ for base in bases), bases, {})


def _here(parameter: Tensor) -> Tensor:
    return cast(DTensor, parameter).to_local()


def _group(parameter: Tensor) -> dist.ProcessGroup:
    return cast(DTensor, parameter).device_mesh.get_group(AXIS)


def vocabulary_passes(group: dist.ProcessGroup) -> LogitPasses:
    """Passes over the logits of a rank's tokens, V / S tokens in the order of ranks; all ranks find the same bits."""
    place = dist.get_rank(group)

    def statistics(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        index, _ = own_rows(targets, logits.shape[1], place)
        own = torch.stack(row_sums(logits, index, temperature))
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        with lost(f"rank {dist.get_rank()} was adding up probabilities"):
            dist.all_gather(parts, own, group=group)
        owners = targets // logits.shape[1]
        return from_row_sums(*add_row_sums(torch.stack(parts), owners, temperature), temperature)

    def own_gradients(
        logits: Tensor, targets: Tensor, normalisers: Tensor, entropy: Tensor, given: Gradients, temperature: float
    ) -> None:
        index, is_here = own_rows(targets, logits.shape[1], place)
        to_gradients(logits, index, normalisers, entropy, given, temperature, is_here=is_here)

    return LogitPasses(statistics=statistics, to_gradients=own_gradients)


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
