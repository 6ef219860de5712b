"""Lookup in an embedding that is tied to the output embedding, without a second gradient of its size.

autograd makes a whole matrix for the few rows that were looked up, and another to add it to the output's gradient.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel


class _Lookup(torch.autograd.Function):
    """Lookup of rows whose gradients are added in place to the gradient that the matrix has by then."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, ids: Tensor, embedding: nn.Embedding) -> Tensor:
        # the weight of this moment: where ranks hold slices, the module has another one at other times
        ctx.ids, ctx.weight, ctx.padding_idx = ids, embedding.weight, embedding.padding_idx
        return embedding.weight.detach()[ids]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        weight, ids, rows = ctx.weight, ctx.ids.flatten(), gradients[0].flatten(0, -2)
        if ctx.padding_idx is not None:
            is_read = ids != ctx.padding_idx
            ids, rows = ids[is_read], rows[is_read]
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        weight.grad.index_add_(0, ids, rows.to(weight.dtype))
        return None, None, None


class TiedEmbedding(nn.Embedding):
    """An embedding with torch's parameter and name, whose backward pass adds to `weight.grad` itself.

    A matrix that is split over ranks (`parallel.tensor`) is looked up as in torch's class.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows of these tokens."""
        if not (torch.is_grad_enabled() and self.weight.requires_grad) or isinstance(self.weight, DTensor):
            return super().forward(input)
        anchor = self.weight.new_zeros((), requires_grad=True)  # what lets a gradient come back here at all
        rows: Tensor = _Lookup.apply(anchor, input, self)  # type: ignore[no-untyped-call]
        return rows


def add_up_in_place(model: PreTrainedModel) -> None:
    """Make a tied embedding add its gradient to the output's in place. Embeddings of other classes stay unchanged."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    is_tied = isinstance(head, nn.Module) and getattr(head, "weight", None) is embedding.weight
    is_plain = type(embedding) is nn.Embedding and embedding.max_norm is None and not embedding.scale_grad_by_freq
    if is_tied and is_plain:
        embedding.__class__ = TiedEmbedding
