"""Kernel for weighted sums of integers: one pass over the memory, widened in registers.

N numbers, C chunks.
"""

import torch
from jaxtyping import Int
from torch import Tensor

from paceline.kernels.cpu.compiling import library
from paceline.kernels.cpu.tensors import address, kernel


def serves(numbers: Tensor) -> bool:
    """Return True if `weighted_sums` takes these numbers; otherwise torch does the work."""
    right = numbers.is_cpu and numbers.is_contiguous() and numbers.dtype in (torch.int32, torch.int16)
    return right and library().functions is not None


def weighted_sums(numbers: Int[Tensor, " N"], chunk: int, source: Int[Tensor, " N"] | None = None) -> Int[Tensor, " C"]:
    """Return one int64 per `chunk` numbers, 0 for none: the sum of each times its place, from 1, modulo 2^64.

    `chunk` is a multiple of 65,536, which a thread takes at a time. With a `source`, which `serves` too, `numbers`
    become what it holds, in the same pass.

    Raises:
        ValueError: a `source` of another length.
    """
    count = numbers.numel()
    if source is not None and source.numel() != count:
        raise ValueError(f"{count} numbers cannot become {source.numel()}")
    sums = torch.zeros(max(1, -(-count // chunk)), dtype=torch.int64)
    places = address(numbers), address(source)
    kernel("weighted_sums", "pp iii p")(*places, count, numbers.itemsize, chunk, address(sums))
    return sums
