"""Attention over cut sequences has torch's values and gradients, and an untried kernel is checked before use."""

from dataclasses import replace

import pytest
import torch

from paceline.kernels.flash_attention import (
    DenseKernel,
    FlashKernel,
    Spans,
    flash_problem,
    kernel_problem,
    limits_problem,
    merged,
)

CUDA = torch.device("cuda", 0)


def starts(*lengths):
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_two_equal_keys_share_the_attention_and_their_scores_add_up():
    spans = Spans(queries=starts(1), keys=starts(2), most_queries=1, most_keys=2, causal=False)
    value = torch.tensor([[[1.0]], [[3.0]]])
    out, normaliser = DenseKernel().forward(torch.tensor([[[5.0]]]), torch.ones(2, 1, 1), value, spans, 2.0)
    assert out.item() == pytest.approx(2.0)
    assert normaliser.item() == pytest.approx(10 + torch.tensor(2.0).log().item())


def test_a_sequence_reads_its_own_keys_only_and_of_these_what_is_used():
    spans = Spans(
        queries=starts(1, 1),
        keys=starts(3, 3),
        most_queries=1,
        most_keys=3,
        causal=False,
        used_keys=torch.tensor([2, 1], dtype=torch.int32),
    )
    value = torch.tensor([1.0, 3.0, 100.0, 7.0, 100.0, 100.0])[:, None, None]
    out, _ = DenseKernel().forward(torch.ones(2, 1, 1), torch.ones(6, 1, 1), value, spans, 1.0)
    assert out.flatten().tolist() == pytest.approx([2.0, 7.0])


def test_gradients_by_the_formula_are_those_of_torch():
    spans = Spans(queries=starts(2, 5), keys=starts(2, 5), most_queries=5, most_keys=5, causal=True)
    states = [random(7, heads, 8, seed=heads).requires_grad_() for heads in (4, 2)]
    states.append(random(7, 2, 8, seed=9).requires_grad_())
    out, normaliser = DenseKernel().forward(*states, spans, 0.3)
    grad = random(7, 4, 8, seed=5)
    wanted = torch.autograd.grad(out, states, grad)
    got = DenseKernel().backward(grad, tuple(states), (out, normaliser), spans, 0.3)
    for one, other in zip(got, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-12)


def test_attention_over_two_parts_of_the_keys_merges_to_attention_over_all():
    query, key, value = random(1, 2, 4), random(5, 2, 4, seed=1), random(5, 2, 4, seed=2)

    def over(part):
        count = len(key[part])
        spans = Spans(queries=starts(1), keys=starts(count), most_queries=1, most_keys=count, causal=False)
        return DenseKernel().forward(query, key[part], value[part], spans, 0.5)

    got = merged(over(slice(0, 2)), over(slice(2, 5)))
    assert torch.allclose(got, over(slice(0, 5))[0], atol=1e-12)


@pytest.mark.parametrize(
    ("device", "dtype", "head_size", "capability", "problem"),
    [
        (CUDA, torch.bfloat16, 128, (8, 6), None),
        (CUDA, torch.float16, 256, (9, 0), None),
        (CUDA, torch.bfloat16, 256, (8, 9), "heads have a multiple of 8 up to 192 dimensions here, the model's 256"),
        (CUDA, torch.bfloat16, 36, (9, 0), "heads have a multiple of 8 up to 256 dimensions here, the model's 36"),
        (CUDA, torch.float32, 64, (9, 0), "not in torch.float32"),
        (CUDA, torch.bfloat16, 64, (7, 5), "needs compute capability 8.0, the device has 7.5"),
        (torch.device("cpu"), torch.bfloat16, 64, None, "on CUDA only, the model is on cpu"),
    ],
)
def test_flash_attention_says_what_it_lacks(device, dtype, head_size, capability, problem):
    got = limits_problem(device, dtype, head_size, capability=capability)
    assert got is None if problem is None else problem in got


def test_a_cpu_keeps_its_own_attention():
    assert "on CUDA only" in flash_problem(torch.device("cpu"), torch.bfloat16, (4, 2), 64)


class Halved(DenseKernel):
    """Right but for the gradient of the keys."""

    def backward(self, *args):
        grad_query, grad_key, grad_value = super().backward(*args)
        return grad_query, grad_key / 2, grad_value


class NoNumber(DenseKernel):
    def forward(self, *args):
        out, normaliser = super().forward(*args)
        return out * torch.nan, normaliser


class Speechless(DenseKernel):
    def forward(self, *args):
        raise RuntimeError


class NoGradient(DenseKernel):
    """Right but for a gradient that is no number."""

    def backward(self, *args):
        grad_query, grad_key, grad_value = super().backward(*args)
        return grad_query, grad_key, grad_value * torch.nan


@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        (DenseKernel(), None),
        (Halved(), "differs"),
        (NoNumber(), "differs"),
        (NoGradient(), "differs"),
        (FlashKernel(), "it fails here"),
        (Speechless(), "it fails here: RuntimeError"),
    ],
)
def test_a_kernel_is_tried_before_it_is_trusted(kernel, problem):
    for windowed in (False, True):
        got = kernel_problem(kernel, random(17, 4, 8), random(17, 2, 8, seed=1), windowed=windowed)
        assert got is None if problem is None else problem in got


class Boundless(DenseKernel):
    """Sees all earlier keys, whatever the window."""

    def forward(self, query, key, value, spans, scaling):
        return super().forward(query, key, value, replace(spans, window=None), scaling)


def test_a_kernel_is_tried_with_a_window_where_a_layer_has_one():
    query, key = random(17, 4, 8), random(17, 2, 8, seed=1)
    assert kernel_problem(Boundless(), query, key) is None
    assert "differs" in kernel_problem(Boundless(), query, key, windowed=True)


def test_the_calls_of_flash_attention_fit_torchs_operators():
    """On the device that has shapes and no numbers: what is wrong with the call itself would raise."""

    def empty(*shape, dtype=torch.bfloat16):
        return torch.empty(*shape, dtype=dtype, device="meta")

    cuts, used = empty(4, dtype=torch.int32), empty(3, dtype=torch.int32)
    query, key = empty(10, 4, 16), empty(12, 2, 16)
    spans = Spans(queries=cuts, keys=cuts, most_queries=5, most_keys=6, causal=False, used_keys=used)
    out, normaliser = FlashKernel().forward(query, key, key, spans, 0.25)
    assert (out.shape, normaliser.shape, normaliser.dtype) == ((10, 4, 16), (4, 10), torch.float32)
    gradients = FlashKernel().backward(out, (query, key, key), (out, normaliser), spans, 0.25)
    assert [grad.shape for grad in gradients] == [(10, 4, 16), (12, 2, 16), (12, 2, 16)]
    windowed = replace(spans, causal=True, used_keys=None, window=4)
    out, normaliser = FlashKernel().forward(query, key, key, windowed, 0.25)
    FlashKernel().backward(out, (query, key, key), (out, normaliser), windowed, 0.25)
