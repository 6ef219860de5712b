"""A layer's training kernels in Triton have the values and gradients of their definitions: on a GPU where there is one,
else by Triton's interpreter.

The interpreter cuts bfloat16 off where a GPU rounds it, so its errors are twice a GPU's and of one sign.
"""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

from paceline.config.sections import LoraConfig
from paceline.kernels.cuda.training import (
    add_rms_norm,
    gated_product,
    normed_products,
    product_of_gated,
    side_by_side,
    training_problem,
    turned_heads,
)
from paceline.kernels.cuda.triton_check import triton_problem
from paceline.models.activations import recompute
from paceline.models.forward import PolicyForward, measure_activations
from paceline.models.fused_layers import fuse_layers, restore_layers
from paceline.models.loaded import Loaded
from paceline.models.lora import add_adapter, make_lora_config
from paceline.models.rows import on_device
from tests.unit.models.test_models_fused_layers import batch, wide_model

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPS = 1e-3
tried = pytest.mark.skipif(
    triton_problem(HERE) is not None, reason=f"{triton_problem(HERE)}; TRITON_INTERPRET=1 needs no GPU"
)
precisions = pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2e-6), (torch.bfloat16, 1.6e-2)], ids=str)
PACKED = PolicyForward(kind="packed", reason="")


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(HERE, dtype)


def relative(got, wanted):
    return float(((got.double() - wanted.double()).norm() / wanted.double().norm()).detach())


def agree(function, definition, given, limit, frozen=()):
    """Values and gradients of a function of `given` tensors are those of its definition in float64."""
    results = []
    for each, dtype in ((function, None), (definition, torch.float64)):
        inputs = [one.detach().to(dtype or one.dtype) for one in given]
        trained = [one.requires_grad_() for place, one in enumerate(inputs) if place not in frozen]
        found = each(*inputs)
        loss = sum((one.double() * draw(*one.shape, seed=90 + at)).sum() for at, one in enumerate(found))
        results.append([*found, *torch.autograd.grad(loss, trained)])
    for got, wanted in zip(*results, strict=True):
        assert got.shape == wanted.shape
        assert relative(got, wanted) <= limit


def plain_norm(total, scale):
    return total / (total.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * scale


def plain_turn(states, cosine, sine):
    first, second = states.chunk(2, dim=-1)
    return states * cosine[:, None] + torch.cat([-second, first], dim=-1) * sine[:, None]


def angles(tokens, width):
    found = draw(tokens, width // 2, seed=7).repeat(1, 2)
    return found.cos(), found.sin()


@tried
@precisions
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (37, 100), (5, 896), (3, 5000)])
@pytest.mark.parametrize("frozen", [(), (2,), (0, 1)])
def test_the_norm_of_a_sum(dtype, limit, rows, width, frozen):
    given = draw(rows, width), draw(rows, width, seed=1, dtype=dtype), draw(width, seed=2)
    agree(
        lambda x, addend, scale: add_rms_norm(x, addend, scale, eps=EPS, dtype=dtype),
        lambda x, addend, scale: (x + addend, plain_norm(x + addend, scale)),
        given,
        limit,
        frozen,
    )


@tried
@precisions
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)], ids=["sum", "norm", "both"])
def test_a_norm_without_an_addend_passes_its_input_on(dtype, limit, used):
    def of(found):
        return [found[place] for place in used]

    agree(
        lambda x, scale: of(add_rms_norm(x, None, scale, eps=EPS, dtype=dtype)),
        lambda x, scale: of((x, plain_norm(x, scale))),
        [draw(2, 3, 64), draw(64, seed=1)][: 2 if 1 in used else 1] + ([] if 1 in used else [draw(64, seed=1)]),
        limit,
        () if 1 in used else (1,),
    )


@tried
@precisions
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("frozen", [(), (3, 4, 5, 6), (0, 1, 2)])
def test_products_of_a_normed_sum(dtype, limit, has_bias, frozen):
    given = [draw(1, 21, 48), draw(1, 21, 48, seed=1, dtype=dtype), draw(48, seed=2)]
    given += [draw(rows, 48, seed=rows) for rows in (24, 8)]
    given += [draw(rows, seed=rows + 1) for rows in (24, 8)] if has_bias else []

    def both(x, addend, scale, one, other, *biases):
        total, products = normed_products(x, addend, scale, (one, other), biases or (None, None), eps=EPS, dtype=dtype)
        return total, *products

    def plain(x, addend, scale, one, other, *biases):
        normed = plain_norm(x + addend, scale)
        products = (
            F.linear(normed, weight, bias) for weight, bias in zip((one, other), biases or (None, None), strict=True)
        )
        return x + addend, *products

    agree(both, plain, given, limit, [place for place in frozen if place < len(given)])


@tried
@precisions
@pytest.mark.parametrize("width", [16, 1024, 1500])
def test_a_gated_product_of_two_tensors_or_of_two_halves(dtype, limit, width):
    gate, up = draw(2, 3, width, dtype=dtype) * 4, draw(2, 3, width, seed=1, dtype=dtype)
    agree(lambda *given: [gated_product(*given)], lambda gate, up: [F.silu(gate) * up], (gate, up), limit)
    agree(
        lambda both: [gated_product(*both.chunk(2, dim=-1))],
        lambda both: [F.silu(both.chunk(2, dim=-1)[0]) * both.chunk(2, dim=-1)[1]],
        [torch.cat([gate, up], dim=-1)],
        limit,
    )


@tried
def test_a_gate_far_from_zero_is_shut_or_open():
    gate = torch.tensor([-1e30, -200.0, 200.0, 1e30], device=HERE, requires_grad=True)
    product = gated_product(gate[None], torch.full((1, 4), 2.0, device=HERE))
    assert product[0].tolist() == pytest.approx([0.0, 0.0, 400.0, 2e30], rel=1e-6, abs=1e-7)
    assert torch.autograd.grad(product.sum(), gate)[0].tolist() == [0.0, 0.0, 2.0, 2.0]


@tried
@precisions
@pytest.mark.parametrize("frozen", [(), (2,), (3,)])
def test_a_product_of_a_gated_product(dtype, limit, frozen):
    given = draw(1, 9, 40, dtype=dtype), draw(1, 9, 40, seed=1, dtype=dtype), draw(24, 40, seed=2), draw(24, seed=3)
    agree(
        lambda *given: [product_of_gated(*given)],
        lambda gate, up, weight, bias: [F.linear(F.silu(gate) * up, weight, bias)],
        given,
        limit,
        frozen,
    )


@tried
@precisions
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(4, 2, 64), (2, 2, 80), (6, 1, 16), (1, 1, 256)])
@pytest.mark.parametrize("normed", [True, False])
def test_queries_and_keys_are_normed_and_turned(dtype, limit, heads, kv_heads, width, normed):
    rotation, sizes = angles(41, width), [heads * width, kv_heads * width, kv_heads * width]
    joined = draw(41, sum(sizes), dtype=dtype)

    def turned(joined, *scales):
        states = [one.unflatten(1, (-1, width)) for one in joined.split(sizes, dim=1)]
        return turned_heads(*states, rotation, (*scales, EPS) if scales else None)

    def plain(joined, *scales):
        query, key, value = (one.unflatten(1, (-1, width)) for one in joined.split(sizes, dim=1))
        if scales:
            query, key = plain_norm(query, scales[0]), plain_norm(key, scales[1])
        return *(plain_turn(one, *(part.double() for part in rotation)) for one in (query, key)), value

    scales = [draw(width, seed=3), draw(width, seed=4)] if normed else []
    agree(turned, plain, [joined, *scales], limit)
    apart = [draw(41, size // width, width, seed=size, dtype=dtype) for size in sizes]
    agree(
        lambda *states: turned_heads(*states, rotation),
        lambda q, k, v: plain(torch.cat([q.flatten(1), k.flatten(1), v.flatten(1)], dim=1)),
        apart,
        limit,
    )


def test_matrices_side_by_side_in_memory_are_not_copied():
    whole = torch.arange(15.0).view(3, 5)
    parts = whole.split([2, 1, 2], dim=1)
    assert side_by_side(parts).data_ptr() == whole.data_ptr()
    for others in (parts[::-1], [part.clone() for part in parts], parts[:2], [parts[0], parts[2]]):
        assert torch.equal(side_by_side(others), torch.cat(list(others), dim=1))


@tried
def test_the_same_numbers_give_the_same_bits():
    found = []
    for _ in range(2):
        x, scale = draw(70, 64).requires_grad_(), draw(64, seed=1).requires_grad_()
        normed = add_rms_norm(x, None, scale, eps=EPS, dtype=torch.float32)[1]
        found.append(torch.autograd.grad((normed**2).sum(), (x, scale)))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_float64_is_left_to_torch():
    assert "not in torch.float64" in training_problem(HERE, torch.float64)


# --- whole layers


def hidden_and_gradients(model, dtype=torch.float32):
    model.zero_grad()
    half = torch.autocast(HERE.type, dtype=dtype) if dtype == torch.bfloat16 else nullcontext()
    with half:
        hidden = PACKED(model, on_device(batch(), HERE))
    (hidden.float() * draw(*hidden.shape, seed=1)).sum().backward()
    grads = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return {"hidden": hidden.detach().float(), **grads}


def ready(family):
    model = wide_model(family).to(HERE)
    model.set_attn_implementation("paceline")
    return model


@tried
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_familys_layers_have_the_same_hidden_states_and_gradients_with_kernels(family):
    assert training_problem(HERE, torch.float32) is None
    model = ready(family)
    exact, rounded = hidden_and_gradients(model), hidden_and_gradients(model, torch.bfloat16)
    assert fuse_layers(model)
    fused, half = hidden_and_gradients(model), hidden_and_gradients(model, torch.bfloat16)
    assert exact.keys() == fused.keys() == half.keys()
    for name, wanted in exact.items():
        assert relative(fused[name], wanted) < 2e-5, name
        # rounding differs between the two, so both are held to float32's result; the interpreter's is twice a GPU's
        assert relative(half[name], wanted) < 2.2 * relative(rounded[name], wanted) + 1e-3, name


@tried
def test_recomputed_activations_give_the_same_gradient():
    model = ready("qwen2")
    fuse_layers(model)
    plain = hidden_and_gradients(model)
    recompute(model, None)
    again = hidden_and_gradients(model)
    assert all(torch.equal(again[name], one) for name, one in plain.items())


@tried
def test_an_adapter_gets_its_gradient_and_the_frozen_weights_none():
    model = ready("qwen2")
    add_adapter(Loaded(model=model, compute_dtype=torch.float32), make_lora_config(LoraConfig(lora_rank=2)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.02)
    wanted = hidden_and_gradients(model)
    fuse_layers(model)
    got = hidden_and_gradients(model)
    assert all(name == "hidden" or "lora" in name for name in got)
    assert all(relative(got[name], one) < 2e-5 for name, one in wanted.items())
    restore_layers(model)


@tried
@pytest.mark.parametrize(("family", "raw_heads"), [("llama", 0), ("qwen2", 0), ("qwen3", 4 + 2 * 2)])
def test_a_layer_keeps_what_no_kernel_makes_again(family, raw_heads):
    """Per token: two normed sums, attention's query, key, value and output, gate and up; a norm over heads keeps its
    inputs, and values with them. In bfloat16, but for the roots of two mean squares and one sum of each head."""
    model = ready(family)
    fuse_layers(model)
    assert training_problem(HERE, torch.bfloat16) is None  # tried by now, so not while it is measured
    both = measure_activations(model, PACKED, torch.bfloat16).all_layers
    model.model.layers = model.model.layers[:1]  # the difference leaves out the final norm and the angles
    found = both - measure_activations(model, PACKED, torch.bfloat16).all_layers
    width, heads, kv_heads, head, inner = 64, 4, 2, 16, 96
    kept = 2 * width + 2 * heads * head + 2 * kv_heads * head + 2 * inner + max(0, raw_heads - kv_heads) * head
    copied = 2 * kv_heads * head if raw_heads and HERE.type == "cpu" else 0  # the kernel of a CPU copies values
    assert round(found) == 2 * kept + 4 * 2 + 4 * heads + copied
