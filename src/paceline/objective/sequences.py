"""Sums and means over each sequence of a micro-batch.

S sequences of lengths T_1, ..., T_S lie end to end in N tokens, without padding. N is always said to torch: to add the
lengths up it would wait for the device.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def sequence_sums(values: Float[Tensor, " N"], lengths: Int[Tensor, " S"]) -> Float[Tensor, " S"]:
    """Return the sum of each sequence's values.

    >>> sequence_sums(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2, 1]))
    tensor([3., 4.])
    """
    owner = torch.repeat_interleave(lengths, output_size=len(values))
    return values.new_zeros(len(lengths)).index_add(0, owner, values)


def sequence_means(values: Float[Tensor, " N"], lengths: Int[Tensor, " S"]) -> Float[Tensor, " S"]:
    """Return the mean of each sequence's values.

    >>> sequence_means(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2, 1]))
    tensor([1.5000, 4.0000])
    """
    return sequence_sums(values, lengths) / lengths


def each_token(values: Float[Tensor, " S"], lengths: Int[Tensor, " S"], *, num_tokens: int) -> Float[Tensor, " N"]:
    """Repeat a number per sequence for each of its tokens; `num_tokens` is N.

    >>> each_token(torch.tensor([5.0, 7.0]), torch.tensor([2, 1]), num_tokens=3)
    tensor([5., 5., 7.])
    """
    return torch.repeat_interleave(values, lengths, output_size=num_tokens)
