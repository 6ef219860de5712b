"""The kernels of a decoding step in Triton against torch's operations: on a GPU where there is one, else by Triton's
interpreter."""

import pytest
import torch
import torch.nn.functional as F

from paceline.kernels.cuda.decoding import CudaDecodingKernels, RotaryTurn, kernels_problem
from paceline.kernels.cuda.triton_check import next_power, triton_problem
from paceline.kernels.flash_attention import merged

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
KERNELS = CudaDecodingKernels()
tried = pytest.mark.skipif(
    triton_problem(HERE) is not None, reason=f"{triton_problem(HERE)}; TRITON_INTERPRET=1 needs no GPU"
)
precisions = pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2e-6), (torch.bfloat16, 1.6e-2)], ids=str)


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(HERE, dtype)


def close(got, wanted, limit):
    return float((got.double() - wanted.double()).abs().max()) <= limit * float(wanted.double().abs().max())


@tried
@precisions
@pytest.mark.parametrize("width", [64, 100, 896])
@pytest.mark.parametrize("has_update", [True, False])
def test_a_residual_sum_and_its_norm(dtype, limit, width, has_update):
    residual, scale = draw(5, width, dtype=dtype), draw(width, seed=1, dtype=dtype)
    update = draw(5, width, seed=2, dtype=dtype) if has_update else None
    summed = residual if update is None else residual + update
    wanted = F.rms_norm(summed.double(), (width,), scale.double(), 1e-6)
    got = KERNELS.add_norm(residual, update, scale, 1e-6)
    assert close(got, wanted, limit)
    assert close(residual, summed, limit)  # in place


@tried
@precisions
@pytest.mark.parametrize("width", [96, 1024, 1500])
def test_a_gated_activation_of_two_tensors_or_of_two_halves(dtype, limit, width):
    gate, up = draw(3, width, dtype=dtype), draw(3, width, seed=1, dtype=dtype)
    wanted = F.silu(gate.double()) * up.double()
    assert close(KERNELS.silu_mul(gate, up), wanted, limit)
    assert close(KERNELS.silu_mul(torch.cat([gate, up], dim=1)), wanted, limit)


@tried
@precisions
@pytest.mark.parametrize(("query_heads", "kv_heads", "width"), [(4, 2, 64), (2, 2, 80), (6, 1, 16)])
@pytest.mark.parametrize("normed", [True, False])
def test_queries_and_keys_are_turned_and_keys_and_values_stored(dtype, limit, query_heads, kv_heads, width, normed):
    heads, rows = query_heads + kv_heads, 3
    qkv = draw(rows, (heads + kv_heads) * width, dtype=dtype)
    scale = draw(heads, width, seed=1, dtype=dtype)
    angles = draw(9, width // 2, seed=2).repeat(1, 2)
    sign = torch.cat([-torch.ones(width // 2), torch.ones(width // 2)]).to(HERE)
    turn = RotaryTurn(
        cosine=angles.cos().to(dtype),
        sine=(angles.sin() * sign).to(dtype),
        positions=torch.tensor([8, 0, 5], device=HERE),
        places=torch.tensor([11, 2, 7], device=HERE),
        query_places=torch.tensor([1, 2, 0], device=HERE),
    )
    cache = tuple(torch.zeros(12, kv_heads, width, device=HERE, dtype=dtype) for _ in range(2))
    query, ordered = KERNELS.rotate_and_store(qkv, (scale, 1e-6) if normed else None, turn, cache)
    states = qkv.double().view(rows, -1, width)
    turned = states[:, :heads]
    if normed:
        turned = F.rms_norm(turned, (width,), None, 1e-6) * scale.double()
    cosine, sine = (table.double()[turn.positions][:, None] for table in (turn.cosine, turn.sine))
    turned = turned * cosine + turned.roll(width // 2, -1) * sine
    assert close(query, turned[:, :query_heads], limit)
    assert torch.equal(ordered[turn.query_places], query)
    assert close(cache[0][turn.places], turned[:, query_heads:], limit)
    assert torch.equal(cache[1][turn.places], qkv.view(rows, -1, width)[:, heads:])
    others = [place for place in range(12) if place not in (11, 2, 7)]
    assert all(not stored[others].any() for stored in cache)


@tried
@precisions
def test_two_parts_of_attention_are_put_together_row_by_row(dtype, limit):
    own, prompt = ((draw(3, 2, 24, seed=seed, dtype=dtype), 4 * draw(2, 3, seed=seed + 9)) for seed in (0, 1))
    place_of = torch.tensor([2, 0, 1], device=HERE)
    wanted = merged((own[0].double(), own[1].double()), (prompt[0][place_of].double(), prompt[1][:, place_of].double()))
    assert close(KERNELS.merge(own, prompt, place_of), wanted.flatten(1), limit)


def test_float64_is_left_to_torch():
    assert "not in torch.float64" in kernels_problem(HERE, torch.float64)


def test_a_programs_columns_are_a_power_of_two():
    assert [next_power(width) for width in (1, 2, 3, 64, 80)] == [1, 2, 4, 64, 128]
