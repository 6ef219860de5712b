"""One step of layers with states gives the numbers worked out by hand, compiled or by torch, whatever rows share it."""

import dataclasses
import math

import pytest
import torch
from torch.nn.functional import softplus
from transformers.models.granitemoehybrid.modeling_granitemoehybrid import mamba2_selective_state_update
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_recurrent_gated_delta_rule

from paceline.kernels.cpu.compiling import library
from paceline.kernels.recurrence import Convolution, DeltaRule, SelectiveScan, ShortConvolution, step

needs_compiler = pytest.mark.skipif(library().functions is None, reason=library().reason)
both_forms = pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=needs_compiler)])
WIDE = 1e10
"""An epsilon beside which a norm's mean square is nothing: with a scale of its root the norm changes nothing."""


def no_scan(inputs, state):
    raise AssertionError("a step scans no prompts")


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def before_silu(value):
    """The number above 0 of which silu is `value`."""
    low, high = 0.0, value + 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if middle / (1 + math.exp(-middle)) < value else (low, middle)
    return low


def run(rule, tokens, states, compiled):
    return [step(rule, torch.tensor([token]), states, compiled=compiled).item() for token in tokens]


@both_forms
def test_a_short_convolution_reads_the_inputs_before_its_own(compiled):
    rule = ShortConvolution(convolution=Convolution(weight=torch.tensor([[1.0], [10.0], [100.0]]), bias=None))
    prompt = torch.tensor([[[1.0], [2.0]]])
    assert run(rule, [[1.0, 1.0, 3.0]], [prompt], compiled) == [321]
    assert prompt.flatten().tolist() == [2, 3]
    assert run(rule, [[1.0, 1.0, 3.0]], [torch.zeros(1, 2, 1)], compiled) == [300]
    assert run(rule, [[2.0, 5.0, 3.0]], [torch.zeros(1, 2, 1)], compiled) == [3000]  # gated on both sides


@both_forms
@pytest.mark.parametrize(("start", "expected"), [(0.0, [1, 2.25]), (2.0, [1.5, 2.375])])
def test_the_delta_rule_replaces_half_of_what_is_known(compiled, start, expected):
    # key and query 1, decay 0.5, beta 0.5, values 2, 4
    rule = DeltaRule(
        convolution=Convolution(weight=torch.ones(1, 3), bias=None), scan=no_scan, rates=torch.tensor([-math.log(2)]),
        dt_bias=torch.tensor([math.log(math.e - 1)]), scale=torch.tensor([WIDE**0.5]), eps=WIDE, beta_scale=1.0,
        key_heads=1, value_heads=1, key_width=1, value_width=1,
    )  # fmt: skip
    tokens = [[9.0, 9.0, before_silu(value), before_silu(1), 0.0, 0.0] for value in (2, 4)]
    states = [torch.zeros(1, 0, 3), torch.full((1, 1, 1, 1), start)]
    assert run(rule, tokens, states, compiled) == pytest.approx(expected, abs=1e-4)
    assert states[1].item() == pytest.approx(expected[1], abs=1e-5)


@both_forms
def test_a_selective_scan_forgets_by_its_time_step(compiled):
    # A = -1, time step ln 2, B = C = x = 1
    rule = SelectiveScan(
        convolution=Convolution(weight=torch.ones(1, 3), bias=None), scan=no_scan, rates=torch.tensor([-1.0]),
        dt_bias=torch.zeros(1), skip=torch.zeros(1), scale=torch.tensor([WIDE**0.5]), eps=WIDE, limits=(0.0, math.inf),
        heads=1, groups=1, width=1, size=1,
    )  # fmt: skip
    token = [before_silu(1)] * 4 + [0.0]
    states = [torch.zeros(1, 0, 3), torch.zeros(1, 1, 1, 1)]
    assert run(rule, [token, token], states, compiled) == pytest.approx([0.6931, 1.0397], abs=1e-4)
    narrow = dataclasses.replace(rule, limits=(0.0, 0.5))
    assert run(narrow, [token], [torch.zeros(1, 0, 3), torch.zeros(1, 1, 1, 1)], compiled) == pytest.approx([0.5])


def delta_rule(key_heads=2, value_heads=4, key_width=16, value_width=16, taps=4, bias=False):
    width = 2 * key_heads * key_width + value_heads * value_width
    return DeltaRule(
        convolution=Convolution(weight=normal(taps, width, seed=1), bias=normal(width, seed=2) if bias else None),
        scan=no_scan, rates=-normal(value_heads, seed=3).exp(), dt_bias=normal(value_heads, seed=4),
        scale=normal(value_width, seed=5), eps=1e-6, beta_scale=2.0, key_heads=key_heads, value_heads=value_heads,
        key_width=key_width, value_width=value_width,
    )  # fmt: skip


def selective_scan(heads=4, groups=2, width=16, size=16, taps=4, bias=True):
    channels = heads * width + 2 * groups * size
    return SelectiveScan(
        convolution=Convolution(weight=normal(taps, channels, seed=1), bias=normal(channels, seed=2) if bias else None),
        scan=no_scan, rates=-normal(heads, seed=3).exp(), dt_bias=normal(heads, seed=4), skip=normal(heads, seed=5),
        scale=normal(heads * width, seed=6), eps=1e-5, limits=(0.3, 1.5), heads=heads, groups=groups, width=width,
        size=size,
    )  # fmt: skip


def short_convolution(channels=48, taps=3, bias=True):
    bias = normal(channels, seed=2) if bias else None
    return ShortConvolution(convolution=Convolution(weight=normal(taps, channels, seed=1), bias=bias))


RULES = {
    "delta": delta_rule(),
    "delta, odd widths": delta_rule(key_heads=1, value_heads=3, key_width=5, value_width=11, taps=2, bias=True),
    "delta, wide heads": delta_rule(key_heads=1, value_heads=2, key_width=40, value_width=136),
    "scan": selective_scan(),
    "scan, odd widths": selective_scan(heads=3, groups=1, width=5, size=11, taps=2, bias=False),
    "scan, many channels": selective_scan(heads=8, groups=1, width=40, size=128),
    "convolution": short_convolution(),
    "convolution, one tap": short_convolution(channels=301, taps=1, bias=False),
}


def projected_width(rule):
    if isinstance(rule, DeltaRule):
        return 2 * rule.key_heads * rule.key_width + 2 * rule.value_heads * (rule.value_width + 1)
    if isinstance(rule, SelectiveScan):
        return 2 * rule.heads * rule.width + 2 * rule.groups * rule.size + rule.heads
    return 3 * rule.convolution.weight.shape[1]


def in_float64(value):
    """The same rule, or tensor, in float64."""
    if isinstance(value, torch.Tensor):
        return value.double()
    if not dataclasses.is_dataclass(value):
        return value
    return dataclasses.replace(
        value, **{field.name: in_float64(getattr(value, field.name)) for field in dataclasses.fields(value)}
    )


def states_of(rule, rows, dtype):
    weight = rule.convolution.weight
    last = normal(rows, len(weight) - 1, weight.shape[1], seed=7).to(dtype)
    return [last, *(normal(rows, *shape, seed=8) for shape in rule.shapes())]


@needs_compiler
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
def test_compiled_steps_are_those_of_torch_in_float64(name, dtype, tolerance):
    rule, rows = RULES[name], 3
    exact, states = in_float64(rule), states_of(rule, rows, dtype)
    exact_states = [state.double() for state in states]
    for token in range(6):
        projected = normal(rows, projected_width(rule), seed=10 + token).to(dtype)
        got = step(rule, projected, states, compiled=True)
        expected = step(exact, projected.double(), exact_states, compiled=False)
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)
    for state, expected in zip(states, exact_states, strict=True):
        torch.testing.assert_close(state.double(), expected, rtol=tolerance, atol=tolerance)


@needs_compiler
@pytest.mark.parametrize("name", RULES)
def test_a_row_has_the_same_bits_alone_and_among_64(name):
    rule = RULES[name]
    together, projected = states_of(rule, 64, torch.float32), normal(64, projected_width(rule), seed=9)
    alone = [state[17:18].clone() for state in together]
    out = step(rule, projected, together, compiled=True)
    assert torch.equal(step(rule, projected[17:18].clone(), alone, compiled=True), out[17:18])
    assert all(torch.equal(mine, state[17:18]) for mine, state in zip(alone, together, strict=True))


def test_torchs_steps_are_those_of_transformers():
    rule = in_float64(delta_rule(bias=True))
    convolved, projected = (
        normal(3, rule.convolution.weight.shape[1]).double(),
        normal(3, projected_width(rule)).double(),
    )
    query, key, value = (part[:, None] for part in rule._heads(convolved))
    b, a = projected[:, -8:].chunk(2, dim=-1)
    state = normal(3, *rule.shapes()[0], seed=1)
    options = {"g": rule.rates * softplus(a + rule.dt_bias), "beta": 2 * b.sigmoid()}
    expected = torch_recurrent_gated_delta_rule(
        query, key, value, **{name: rate[:, None] for name, rate in options.items()},
        initial_state=state.clone(), output_final_state=True, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    states = [state.double()]
    out = rule.stepped(projected, convolved, states)
    torch.testing.assert_close(states[0], expected[1].double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out, rule._gated(expected[0][:, 0].double(), projected), rtol=1e-5, atol=1e-5)

    scan = dataclasses.replace(in_float64(selective_scan()), limits=(0.0, math.inf))  # as transformers' step has none
    convolved, projected = (
        normal(3, scan.convolution.weight.shape[1]).double(),
        normal(3, projected_width(scan)).double(),
    )
    x, b, c = scan._parts(convolved)
    state = normal(3, *scan.shapes()[0], seed=1).double()
    states = [state.clone()]
    out = scan.stepped(projected, convolved, states)
    wide = scan.width, scan.size
    expected = mamba2_selective_state_update(
        state, x, projected[:, -4:, None].expand(-1, -1, 16), scan.rates[:, None, None].expand(-1, *wide), b, c,
        scan.skip[:, None].expand(-1, 16), dt_bias=scan.dt_bias[:, None].expand(-1, 16), dt_softplus=True,
    )  # fmt: skip
    torch.testing.assert_close(states[0], state, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out, scan._gated(expected.flatten(1), projected), rtol=1e-5, atol=1e-5)
