"""The kernels in Triton against torch's operations: on a GPU where there is one, else by Triton's interpreter."""

import os

import pytest
import torch

from paceline.kernels.cuda.logits import logit_passes, passes_problem
from paceline.kernels.cuda.triton_check import triton_problem
from paceline.kernels.logprobs import token_logprobs

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
tried = pytest.mark.skipif(
    triton_problem(HERE) is not None, reason=f"{triton_problem(HERE)}; TRITON_INTERPRET=1 needs no GPU"
)


def draw(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(HERE)


@tried
@pytest.mark.parametrize(("of_logprob", "of_entropy"), [(1.0, None), (None, 1.0), (0.7, -0.3)])
@pytest.mark.parametrize("vocabulary", [2, 37, 4096, 9001])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.bfloat16, 1e-2)], ids=str)
def test_the_kernels_agree_with_torchs_operations(dtype, tolerance, vocabulary, of_logprob, of_entropy):
    targets = torch.randint(vocabulary, (30,), generator=torch.Generator().manual_seed(0)).to(HERE)
    share, results = draw(30, seed=1), []
    for passes in (None, logit_passes(HERE, dtype)):
        hidden = draw(30, 8, seed=2).to(dtype).requires_grad_()
        head = draw(vocabulary, 8, seed=3).requires_grad_()
        logprobs, entropy = token_logprobs(
            hidden, head, targets, temperature=0.8, chunk_elements=1, product_rows=7, passes=passes
        )
        parts = [(of_logprob, logprobs), (of_entropy, entropy)]
        loss = sum((share * factor * values).sum() for factor, values in parts if factor is not None)
        grads = torch.autograd.grad(loss, (hidden, head))
        results.append([*(part.detach() for part in (logprobs, entropy)), *grads])
    for place, (wanted, got) in enumerate(zip(*results, strict=True)):
        limit = 3e-6 if place < 2 else tolerance  # logprobs and entropies are float32 whatever the logits are
        assert (got - wanted).float().norm() <= limit * wanted.float().norm() + 1e-6


@tried
def test_logits_of_any_size_neither_overflow_nor_vanish():
    logits = torch.tensor([[3e4, 3e4, -3e4] + [0.0] * 17, [-3e4] * 19 + [-3e4 + 1]], device=HERE)
    passes = logit_passes(HERE, torch.float32)
    logprobs, entropy, normalisers = passes.statistics(logits, torch.tensor([0, 19], device=HERE), 1.0)
    assert logprobs.tolist() == pytest.approx([-0.693147, -2.078154])  # of two; of e among 19 ones
    assert entropy.tolist() == pytest.approx([0.693147, 2.952993], rel=1e-5)
    assert normalisers.tolist() == pytest.approx([3e4 + 0.693, -3e4 + 3.078], rel=1e-6)


@tried
@pytest.mark.parametrize("place", [0, 18])
def test_a_token_that_cannot_be_sampled_spoils_no_gradient(place):
    """A bias of -infinity over a padded vocabulary: the rest is softmax(1, 1), whose entropy is ln 2."""
    passes, logits = logit_passes(HERE, torch.float32), torch.full((1, 20), -torch.inf, device=HERE)
    logits[0, place : place + 2], target, one = 1.0, torch.tensor([place], device=HERE), torch.ones(1, device=HERE)
    logprobs, entropy, normalisers = passes.statistics(logits, target, 1.0)
    assert (logprobs.item(), entropy.item()) == pytest.approx((-0.693147, 0.693147), rel=1e-5)
    passes.to_gradients(logits, target, normalisers, entropy, [one, one], 1.0)
    assert logits[0, place : place + 2].tolist() == pytest.approx([0.5, -0.5], rel=1e-5)
    assert logits.count_nonzero() == 2


@tried
def test_a_logit_that_is_no_number_stays_visible():
    logits = torch.zeros(1, 40, device=HERE)
    logits[0, 5] = torch.nan
    found = logit_passes(HERE, torch.float32).statistics(logits, torch.tensor([1], device=HERE), 1.0)
    assert found[2].isnan().all()


def test_float64_is_left_to_torch():
    assert "not in torch.float64" in passes_problem(HERE, torch.float64)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter takes any tensor")
def test_a_processor_is_left_to_torch():
    assert logit_passes(torch.device("cpu"), torch.float32) is None
