"""Fingerprints of weights: any bit, its place and the order count, whoever adds them up."""

import pytest
import torch

from paceline.kernels.checksums import CHUNK, WORDS, bit_sums, fingerprint
from paceline.kernels.cpu.compiling import library


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_fingerprint_knows_order_place_and_sign(dtype):
    values = torch.arange(1, 41, dtype=torch.float64).to(dtype)
    found = fingerprint([values[:20], values[20:]])
    assert found == fingerprint([values[:20].clone(), values[20:].clone()])
    swapped = values.clone()
    swapped[[3, 4]] = values[[4, 3]]
    negated = values.clone()
    negated[7] *= -1
    others = [[values[20:], values[:20]], [swapped[:20], swapped[20:]], [negated[:20], negated[20:]]]
    assert len({found, *map(fingerprint, others)}) == 4


@pytest.mark.skipif(library().functions is None, reason=library().reason)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1, 7, 1000, 2 * CHUNK + 5])
def test_the_kernel_makes_the_sums_that_torch_makes(dtype, size):
    numbers = torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype).view(WORDS[dtype.itemsize])
    chunks = numbers.split(CHUNK)
    wanted = [int((chunk * torch.arange(1, len(chunk) + 1)).sum()) for chunk in chunks]
    assert bit_sums(numbers).tolist() == wanted


@pytest.mark.skipif(library().functions is None, reason=library().reason)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16], ids=str)
def test_the_kernel_copies_and_adds_up_in_one_pass(dtype):
    source = torch.arange(-70_000, 70_007).to(dtype)
    numbers = torch.zeros_like(source)
    assert torch.equal(bit_sums(numbers, source), bit_sums(source))
    assert torch.equal(numbers, source)
    with pytest.raises(ValueError, match="140007 numbers cannot become 140006"):
        bit_sums(numbers, source[1:])


def test_a_fingerprint_is_folded_as_its_equation_says():
    first, second = torch.tensor([1.5, -2.0]), torch.tensor([3.0])
    bits = [int(one) for one in torch.cat([first, second]).view(torch.int32)]
    wanted = ((bits[0] + 2 * bits[1]) * 0x100000001B3 + bits[2]) % 2**64
    assert fingerprint([first, second]) == wanted


def test_a_fingerprint_of_a_long_tensor_sees_every_part_of_it():
    long = torch.zeros(CHUNK * 2 + 5)
    found = fingerprint([long])
    for place in (0, CHUNK - 1, CHUNK, len(long) - 1):
        changed = long.clone()
        changed[place] = 1e-30
        assert fingerprint([changed]) != found
