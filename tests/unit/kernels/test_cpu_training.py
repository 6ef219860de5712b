"""The CPU kernels of norms and gated products have the values and gradients of their definitions."""

import pytest
import torch
from torch import Tensor

from paceline.kernels.cpu.compiling import library
from paceline.kernels.cpu.training import add_rms_norm, gated_product

pytestmark = pytest.mark.skipif(library().functions is None, reason=library().reason)

ROWS, WIDTH, EPS = 150, 80, 1e-3
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 6e-3}


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def relative(got: Tensor, wanted: Tensor) -> float:
    return float(((got.double() - wanted.double()).norm() / wanted.double().norm()).detach())


def plain_norm(x: Tensor, addend: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    total = x + addend
    return total, total / (total.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * scale


def test_a_norm_worked_out_by_hand():
    row = torch.tensor([3.0, -1.0, 1.0, 1.0] * 4)  # mean square 3
    total, normed = add_rms_norm(row[None], None, 2 * torch.ones(16), eps=1.0, dtype=torch.float32)
    assert total[0].tolist() == row.tolist()
    assert normed[0].tolist() == row.tolist()  # over 2, the root of 3 + 1, times 2


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_the_norm_of_a_sum_has_the_values_and_gradients_of_its_definition(dtype):
    x, addend, scale = draw(ROWS, WIDTH, seed=0), draw(ROWS, WIDTH, seed=1).to(dtype), draw(WIDTH, seed=2)
    outside = draw(ROWS, WIDTH, seed=3), draw(ROWS, WIDTH, seed=4).to(dtype)
    inputs = [part.requires_grad_() for part in (x, addend, scale)]
    exact = [part.detach().double().requires_grad_() for part in inputs]
    found = []
    for given, function in ((exact, plain_norm), (inputs, lambda *a: add_rms_norm(*a, eps=EPS, dtype=dtype))):
        total, normed = function(*given)
        loss = (total * outside[0]).sum() + (normed.double() * outside[1].double()).sum()
        found.append([total.detach(), normed.detach(), *torch.autograd.grad(loss, given)])
    assert [part.dtype for part in found[1]] == [torch.float32, dtype, torch.float32, dtype, torch.float32]
    for got, wanted in zip(found[1], found[0], strict=True):
        assert relative(got, wanted) <= TOLERANCE[dtype]


def test_a_norm_without_an_addend_passes_its_input_on():
    x, scale, outside = draw(3, 5, 32, seed=5).requires_grad_(), draw(32, seed=6), draw(3, 5, 32, seed=7)
    total, normed = add_rms_norm(x, None, scale, eps=EPS, dtype=torch.float32)
    assert torch.equal(total, x)
    wanted = plain_norm(x, torch.zeros_like(x), scale)[1]
    assert relative(normed, wanted) < 1e-6
    for share in (0.0, 1.0):  # of the sum in the loss
        got = torch.autograd.grad((normed * outside + share * total).sum(), x, retain_graph=True)[0]
        assert relative(got, torch.autograd.grad((wanted * outside + share * x).sum(), x, retain_graph=True)[0]) < 1e-6


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_the_gated_product_has_the_values_and_gradients_of_silu_times_up(dtype):
    gate, up, outside = (draw(7, 48, seed=seed).to(dtype) for seed in (8, 9, 10))
    gate = (gate * 8).requires_grad_()
    up.requires_grad_()
    exact = [part.detach().double().requires_grad_() for part in (gate, up)]
    product, wanted = gated_product(gate, up), torch.nn.functional.silu(exact[0]) * exact[1]
    assert product.dtype == dtype
    assert relative(product, wanted) <= TOLERANCE[dtype]
    grads = torch.autograd.grad((product * outside).sum(), (gate, up))
    for got, right in zip(grads, torch.autograd.grad((wanted * outside.double()).sum(), exact), strict=True):
        assert relative(got, right) <= TOLERANCE[dtype]


def test_a_gate_far_from_zero_is_shut_or_open():
    gate, up = torch.tensor([-1e30, -200.0, 200.0, 1e30] * 4), torch.full((16,), 2.0)
    assert gated_product(gate, up)[:4].tolist() == pytest.approx([0.0, 0.0, 400.0, 2e30], rel=1e-6, abs=1e-7)


def test_the_number_of_threads_changes_no_bit():
    before, found = torch.get_num_threads(), []
    x, scale = draw(900, 64, seed=11).requires_grad_(), draw(64, seed=12).requires_grad_()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            normed = add_rms_norm(x, None, scale, eps=EPS, dtype=torch.float32)[1]
            found.append([normed.detach(), *torch.autograd.grad((normed**2).sum(), (x, scale))])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_gradient_that_is_one_number_spread_over_all_is_read_as_such():
    gate, up = (draw(64, 128, seed=seed).requires_grad_() for seed in (1, 2))
    got = torch.autograd.grad(gated_product(gate, up).sum(), (gate, up))
    wanted = torch.autograd.grad((torch.nn.functional.silu(gate) * up).sum(), (gate, up))
    assert all(relative(one, other) < 1e-6 for one, other in zip(got, wanted, strict=True))
