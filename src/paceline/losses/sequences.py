"""Sums and means over each sequence of a micro-batch.

S sequences of lengths T_1, ..., T_S lie end to end in N tokens, without padding.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def sequence_sums(values: Float[Tensor, " N"], lengths: Int[Tensor, " S"]) -> Float[Tensor, " S"]:
    """The sum of each sequence's values.

    >>> sequence_sums(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2, 1]))
    tensor([3., 4.])
    """
    owner = torch.repeat_interleave(lengths)
    return values.new_zeros(len(lengths)).index_add(0, owner, values)


def sequence_means(values: Float[Tensor, " N"], lengths: Int[Tensor, " S"]) -> Float[Tensor, " S"]:
    """The mean of each sequence's values.

    >>> sequence_means(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2, 1]))
    tensor([1.5000, 4.0000])
    """
    return sequence_sums(values, lengths) / lengths


def each_token(values: Float[Tensor, " S"], lengths: Int[Tensor, " S"]) -> Float[Tensor, " N"]:
    """A number per sequence, repeated for each of its tokens."""
    return torch.repeat_interleave(values, lengths)
