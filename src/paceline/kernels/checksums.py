"""Checksums of weights: 64 bits of each place that are compared, to know whether two hold the same bits.

Sums of the numbers' bits, each times a weight that depends on its place, modulo 2^64: one pass over the memory, on the
device where it lies, and one read from there. It finds accidents, not attacks.
"""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from paceline.kernels.cpu.compiling import kernel, library

WORDS = {8: torch.int32, 4: torch.int32, 2: torch.int16}
"""Whole numbers that a parameter's bits are read as, by its bytes: half a sum's width, so that no product overflows."""
CHUNK = 1 << 20
"""Numbers that are widened to 64 bits at a time: a multiple of 65,536, which a thread of cpu/sums.c takes."""
_STRIDE = 0x100000001B3
"""Odd, so that no bit of what came before is lost: the prime of FNV-1a."""


@torch.no_grad()
def fingerprint(parameters: Iterable[Tensor]) -> int:
    """64 bits that change with any bit of the parameters, and with their order."""
    return folded([bit_sums(one) for one in parameters])


def bit_sums(parameter: Tensor, source: Tensor | None = None) -> Int[Tensor, " C"]:
    """Sum the words of each chunk, each times its place in the chunk, from 1, modulo 2^64; 0 for no words.

    A `source` of the same precision and size is copied into `parameter` in the same pass; ValueError: another size.
    """
    numbers, given = words(parameter), None if source is None else words(source)
    if given is not None and len(given) != len(numbers):
        raise ValueError(f"{len(numbers)} numbers cannot become {len(given)}")
    if numbers.is_cpu and library().functions is not None:
        sums = torch.zeros(max(1, -(-len(numbers) // CHUNK)), dtype=torch.int64)
        kernel("weighted_sums", "pp iii p")(numbers, given, len(numbers), numbers.itemsize, CHUNK, sums)
        return sums
    if given is not None:
        numbers.copy_(given)
    places = torch.arange(1, min(len(numbers), CHUNK) + 1, device=numbers.device)
    return torch.stack([(chunk * places[: len(chunk)]).sum() for chunk in numbers.split(CHUNK)])


def folded(sums: Sequence[Tensor]) -> int:
    """The fingerprint of parameters with these sums."""
    total = 0
    for part in torch.cat(list(sums)).tolist() if sums else ():
        total = (total * _STRIDE + part) % 2**64
    return total


def words(parameter: Tensor) -> Int[Tensor, " W"]:
    """The whole numbers that its bits are; it is contiguous."""
    return parameter.detach().view(-1).view(WORDS[parameter.element_size()])
