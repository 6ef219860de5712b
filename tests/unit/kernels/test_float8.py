"""Products in eight bits: numbers and scales by hand, and the product of these numbers to rounding."""

import pytest
import torch

from paceline.engines.local.operations import choose_kernels
from paceline.kernels.cpu.decoding import decoding_kernels
from paceline.kernels.cuda.decoding import CudaDecodingKernels
from paceline.kernels.cuda.triton_check import triton_problem
from paceline.kernels.float8 import Float8Linear, float8_problem, float8_product, quantized

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_numbers_and_scales_by_hand():
    # three bits of fraction: between 16 and 32 every second number exists, and halves are rounded to even
    numbers, scale = quantized(torch.tensor([[448.0, 17.0, 19.0, -3.0], [0.0, 0.0, 0.0, 0.0], [-2.0, 1.0, 0.0, 0.25]]))
    assert scale.tolist() == [[1.0], [0.0], [pytest.approx(2 / 448)]]
    assert numbers.float().tolist() == [[448, 16, 20, -3], [0, 0, 0, 0], [-448, 224, 0, 56]]


def test_a_number_that_is_not_finite_shows_in_the_product():
    rows, weight = draw(3, 32), draw(16, 32, seed=1)
    rows[1, 5] = torch.nan
    rows[2, 0] = torch.inf
    kernels = choose_kernels(rows.device, rows.dtype, decoding_kernels(), float8=True)
    finite = kernels.linear(rows, kernels.projection((weight, None))).isfinite().all(1)
    assert finite.tolist() == [True, False, False]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-6), (torch.bfloat16, 8e-3)], ids=str)
def test_a_product_is_of_the_rounded_rows_and_weights(dtype, limit, bias):
    # 512 x 256 is large enough to be packed, where a CPU packs weights
    x, weight = draw(5, 256).to(dtype), draw(512, 256, seed=1).to(dtype)
    added = draw(512, seed=2).to(dtype) if bias else None
    (rows, of_rows), (outputs, of_outputs) = quantized(x), quantized(weight)
    wanted = (rows.double() * of_rows) @ (outputs.double() * of_outputs).T + (0 if added is None else added.double())
    kernels = choose_kernels(x.device, dtype, decoding_kernels(), float8=True)
    by_engine = kernels.linear(x, kernels.projection((weight, added)))
    by_instructions = float8_product((rows, of_rows), Float8Linear(outputs, of_outputs.T.contiguous(), added), dtype)
    for got in (by_engine, by_instructions):
        assert got.dtype == dtype
        assert float((got.double() - wanted).abs().max()) <= limit * float(wanted.abs().max())
    exact = x.double() @ weight.double().T + (0 if added is None else added.double())
    assert float((wanted - exact).abs().max()) > 2e-2 * float(exact.abs().max()), "rounding to eight bits shows"


WITHOUT = triton_problem(HERE) or (float8_problem(HERE, torch.bfloat16) if HERE.type == "cuda" else None)


@pytest.mark.skipif(WITHOUT is not None, reason=f"{WITHOUT}; TRITON_INTERPRET=1 needs no GPU")
@pytest.mark.parametrize("width", [64, 100, 896])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_kernel_in_triton_gives_the_numbers_of_torch(dtype, width):
    x = draw(4, width).to(HERE, dtype)
    x[2] = 0
    (wanted, scales), (got, of_got) = quantized(x), CudaDecodingKernels().quantized(x)
    assert torch.allclose(of_got, scales, rtol=1e-6)
    wanted, got = wanted.float(), got.float()
    if HERE.type == "cpu":  # Triton 3.9's interpreter halves what it rounds up to a power of two
        carried = torch.frexp(wanted).mantissa.abs() == 0.5
        assert torch.isin(got[carried] / wanted[carried], torch.tensor([0.5, 1.0])).all()
        got = torch.where(carried, wanted, got)
    # a division that is rounded otherwise may take the neighbour
    assert (got != wanted).float().mean() < 0.01
    assert torch.allclose(got, wanted, rtol=0.13)


def test_what_cannot_be_multiplied_in_eight_bits_is_said():
    cpu = torch.device("cpu")
    assert float8_problem(cpu, torch.bfloat16) is float8_problem(cpu, torch.float32) is None
    assert float8_problem(cpu, torch.float64) == "it stands in for float32 or bfloat16, not torch.float64"
    gpu = torch.device("cuda")
    assert "the model computes in float32" in (float8_problem(gpu, torch.float32) or "")
    assert (
        float8_problem(gpu, torch.bfloat16, (8, 6)) == "it needs compute capability 8.9 or higher, the device has 8.6"
    )
    assert float8_problem(gpu, torch.bfloat16, (8, 9)) is float8_problem(gpu, torch.bfloat16, (9, 0)) is None
