"""Experts in one call of a CPU kernel have the values and gradients of their definition, whatever their layout."""

from dataclasses import fields, replace

import pytest
import torch
import torch.nn.functional as F

from paceline.kernels.cpu.compiling import library
from paceline.kernels.cpu.experts import SILU, ExpertMatrices, Gate, experts_serve, weighted_experts

pytestmark = pytest.mark.skipif(library().functions is None, reason=library().reason)

CLAMPED = Gate(kind="clamped", alpha=1.702, limit=1.0)
ABSENT = 1
"""An expert that no token chooses."""


def drawn(*shape, seed):
    return 0.3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def experts_of(*, count, width, inner, gate=SILU, transposed=False, biased=False):
    """Experts with random matrices that need a gradient."""
    up, down = drawn(count, 2 * inner, width, seed=0), drawn(count, width, inner, seed=1)
    parts = {
        "gate_up": up.mT.contiguous() if transposed else up,
        "down": down.mT.contiguous() if transposed else down,
        "gate_up_bias": drawn(count, 2 * inner, seed=2) if biased else None,
        "down_bias": drawn(count, width, seed=3) if biased else None,
    }
    leaves = {name: None if part is None else part.requires_grad_() for name, part in parts.items()}
    return ExpertMatrices(**leaves, transposed=transposed, gate=gate)


def tensors_of(experts):
    values = (getattr(experts, field.name) for field in fields(experts))
    return [value for value in values if isinstance(value, torch.Tensor)]


def routed(tokens, choices, count):
    """Choices without `ABSENT`, of which the first is none of the experts."""
    numbers = [number for number in range(count) if number != ABSENT]
    generator = torch.Generator().manual_seed(4)
    order = [torch.randperm(len(numbers), generator=generator)[:choices] for _ in range(tokens)]
    chosen = torch.tensor(numbers)[torch.stack(order)]
    chosen[0, 0] = count
    return chosen


def by_definition(x, choices, weights, experts):
    rows = []
    for state, numbers, shares in zip(x, choices.tolist(), weights, strict=True):
        total = torch.zeros_like(state)
        for number, share in zip(numbers, shares, strict=True):
            if number == len(experts.down):
                continue
            up, down = experts.gate_up[number], experts.down[number]
            factors = state @ (up if experts.transposed else up.T)
            if experts.gate_up_bias is not None:
                factors = factors + experts.gate_up_bias[number]
            if experts.gate == SILU:
                gate, other = factors.chunk(2)
                product = F.silu(gate) * other
            else:
                limit = experts.gate.limit
                gate, other = factors[::2].clamp(max=limit), factors[1::2].clamp(-limit, limit)
                product = gate * torch.sigmoid(experts.gate.alpha * gate) * (other + 1)
            out = product @ (down if experts.transposed else down.T)
            total = total + share * (out if experts.down_bias is None else out + experts.down_bias[number])
        rows.append(total)
    return torch.stack(rows)


def doubled(experts):
    names = ("gate_up", "down", "gate_up_bias", "down_bias")
    parts = {name: getattr(experts, name) for name in names}
    wide = {name: None if part is None else part.detach().double().requires_grad_() for name, part in parts.items()}
    return replace(experts, **wide)


@pytest.mark.parametrize("gate", [SILU, CLAMPED], ids=["silu", "clamped"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("tokens", "choices", "count", "width", "inner"),
    [(2, 1, 3, 16, 16), (9, 2, 4, 48, 16), (40, 2, 4, 32, 80), (700, 2, 4, 16, 16), (5, 3, 6, 272, 288)],
)
def test_values_and_gradients_are_those_of_the_definition(tokens, choices, count, width, inner, transposed, gate):
    # 700 tokens: an expert's rows are several tasks, and several blocks of a weight's gradient
    experts = experts_of(
        count=count, width=width, inner=inner, gate=gate, transposed=transposed, biased=gate == CLAMPED
    )
    chosen = routed(tokens, choices, count)
    x, weights = drawn(tokens, width, seed=5).requires_grad_(), drawn(tokens, choices, seed=6).requires_grad_()
    exact, wide = doubled(experts), [part.detach().double().requires_grad_() for part in (x, weights)]
    assert experts_serve(x, experts, chosen)
    out, wanted = weighted_experts(x, chosen, weights, experts), by_definition(wide[0], chosen, wide[1], exact)
    share = drawn(tokens, width, seed=7)
    grads = torch.autograd.grad((share * out).sum(), [x, weights, *tensors_of(experts)])
    right = torch.autograd.grad((share.double() * wanted).sum(), [*wide, *tensors_of(exact)])
    for got, true in zip([out.detach(), *grads], [wanted.detach(), *right], strict=True):
        assert float((got.double() - true).norm() / true.norm()) < 1e-6
    for gradient in grads[2:]:
        assert torch.equal(gradient[ABSENT], torch.zeros_like(gradient[ABSENT]))


def test_an_expert_worked_out_by_hand():
    # x = 1 in one place of 16; gate 2 and up 3 in the first inner number; silu(2) = 1.761594, times 3, times 0.5
    gate_up, down = torch.zeros(1, 32, 16), torch.zeros(1, 16, 16)
    gate_up[0, 0, 5], gate_up[0, 16, 5], down[0, 7, 0] = 2.0, 3.0, 1.0
    x = torch.zeros(1, 16)
    x[0, 5] = 1.0
    experts = ExpertMatrices(gate_up=gate_up, down=down)
    out = weighted_experts(x, torch.tensor([[0]]), torch.tensor([[0.5]]), experts)
    assert out[0, 7].item() == pytest.approx(0.5 * 3 * 1.761594)
    assert int(out.count_nonzero()) == 1


def test_a_token_gets_the_same_bits_beside_any_others_and_by_any_layout():
    experts = experts_of(count=4, width=48, inner=80)
    turned = replace(
        experts, gate_up=experts.gate_up.mT.contiguous(), down=experts.down.mT.contiguous(), transposed=True
    )
    chosen, x, weights = routed(200, 2, 4), drawn(200, 48, seed=5), drawn(200, 2, seed=6)
    with torch.no_grad():
        whole = weighted_experts(x, chosen, weights, experts)
        for some in (1, 3, 40):
            for layout in (experts, turned):
                assert torch.equal(weighted_experts(x[:some], chosen[:some], weights[:some], layout), whole[:some])


def test_the_number_of_threads_changes_no_bit_of_experts():
    experts, before, found = experts_of(count=4, width=64, inner=48), torch.get_num_threads(), []
    chosen, x, weights = routed(300, 2, 4), drawn(300, 64, seed=5).requires_grad_(), drawn(300, 2, seed=6)
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            out = weighted_experts(x, chosen, weights, experts)
            found.append([out.detach(), *torch.autograd.grad(out.square().sum(), [x, *tensors_of(experts)])])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_bfloat16_is_rounded_once_behind_all_sums_and_has_no_gradient():
    experts = experts_of(count=4, width=48, inner=80, gate=CLAMPED, transposed=True, biased=True)
    chosen, x, weights = routed(20, 2, 4), drawn(20, 48, seed=5).bfloat16(), drawn(20, 2, seed=6)
    parts = {name: getattr(experts, name).bfloat16() for name in ("gate_up", "down", "gate_up_bias", "down_bias")}
    half = replace(experts, **parts)
    exact = replace(half, **{name: part.double() for name, part in parts.items()})
    with torch.no_grad():
        assert experts_serve(x, half, chosen)
        wanted = by_definition(x.double(), chosen, weights.double(), exact)
        got = weighted_experts(x, chosen, weights, half).double()
    assert torch.allclose(got, wanted, rtol=2**-8, atol=1e-6)  # half a unit in the last of 8 digits
    assert not experts_serve(x, half, chosen)


def test_frozen_matrices_have_no_gradient_and_the_states_keep_theirs():
    experts = experts_of(count=4, width=32, inner=16)
    frozen = replace(experts, gate_up=experts.gate_up.detach(), down=experts.down.detach())
    chosen, x, weights = routed(20, 2, 4), drawn(20, 32, seed=5).requires_grad_(), drawn(20, 2, seed=6)
    got, wanted = (
        torch.autograd.grad(weighted_experts(x, chosen, weights, some).sum(), x)[0] for some in (frozen, experts)
    )
    assert torch.equal(got, wanted)


@pytest.mark.parametrize(
    ("x", "width", "inner"),
    [(torch.zeros(2, 24), 24, 16), (torch.zeros(2, 16), 16, 24), (torch.zeros(2, 16, dtype=torch.float64), 16, 16)],
    ids=["odd width", "odd inner width", "float64"],
)
def test_other_sizes_and_precisions_are_left_to_torch(x, width, inner):
    experts = experts_of(count=2, width=width, inner=inner)
    assert not experts_serve(x, experts, torch.tensor([[0], [1]]))
