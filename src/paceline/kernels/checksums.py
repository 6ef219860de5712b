"""Fingerprints of weights: 64 bits by which copies on different devices are compared.

Sums of the numbers' bits, each times a factor that depends on its index, modulo 2^64: one pass over memory on its own
device, and one read of the result. They detect accidents, not attacks.
"""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from paceline.kernels.cpu.compiling import kernel, library

WORDS = {8: torch.int32, 4: torch.int32, 2: torch.int16}
"""Integer type that a parameter's bits are read as, by its element size: at most half a sum's width."""
CHUNK = 1 << 20
"""Numbers that are widened to 64 bits at a time: a multiple of 65,536, which a thread of cpu/sums.c takes."""
_STRIDE = 0x100000001B3
"""The prime of FNV-1a; odd, so that no earlier bit is lost."""


@torch.no_grad()
def fingerprint(parameters: Iterable[Tensor]) -> int:
    """Return 64 bits that change with any bit of the parameters, and with their order."""
    return folded([bit_sums(parameter) for parameter in parameters])


def bit_sums(parameter: Tensor, source: Tensor | None = None) -> Int[Tensor, " C"]:
    """Sum the words of each chunk, each times its index in the chunk, from 1, modulo 2^64; 0 for no words.

    A `source` of the same precision and size is copied into `parameter` in the same pass; ValueError: another size.
    """
    numbers, copied = words(parameter), None if source is None else words(source)
    if copied is not None and len(copied) != len(numbers):
        raise ValueError(f"{len(numbers)} numbers cannot become {len(copied)}")
    if numbers.is_cpu and library().functions is not None:
        sums = torch.zeros(max(1, -(-len(numbers) // CHUNK)), dtype=torch.int64)
        kernel("weighted_sums", "pp iii p")(numbers, copied, len(numbers), numbers.itemsize, CHUNK, sums)
        return sums
    if copied is not None:
        numbers.copy_(copied)
    places = torch.arange(1, min(len(numbers), CHUNK) + 1, device=numbers.device)
    return torch.stack([(chunk * places[: len(chunk)]).sum() for chunk in numbers.split(CHUNK)])


def folded(sums: Sequence[Tensor]) -> int:
    """Return the fingerprint of parameters with these sums."""
    total = 0
    for part in torch.cat(list(sums)).tolist() if sums else ():
        total = (total * _STRIDE + part) % 2**64
    return total


def words(parameter: Tensor) -> Int[Tensor, " W"]:
    """View a contiguous parameter's bits as integers."""
    return parameter.detach().view(-1).view(WORDS[parameter.element_size()])
