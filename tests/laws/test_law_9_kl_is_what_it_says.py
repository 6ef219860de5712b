"""Law 9: `kl="reverse"` has the gradient of KL(policy || reference), `"forward"` that of KL(reference || policy)."""

import pytest
import torch

from paceline.losses import kl_penalty

TOKENS = 8


@pytest.fixture
def logits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Policy, policy at the start of the step, and reference: three different softmaxes of 8 tokens."""
    return tuple(torch.randn(3, TOKENS, generator=torch.Generator().manual_seed(5), dtype=torch.float64))


def expected_gradient(logits, kl: str, *, on_policy: bool) -> torch.Tensor:
    """Gradient of the penalty averaged over every token with its exact probability of being drawn."""
    policy, old, reference = logits
    policy = policy.clone().requires_grad_()
    logprobs = torch.log_softmax(policy, -1)
    drawn_from = logprobs.detach() if on_policy else torch.log_softmax(old, -1)
    penalty = kl_penalty(logprobs, drawn_from, torch.log_softmax(reference, -1), kl=kl)
    (drawn_from.exp() * penalty).sum().backward()
    return policy.grad


def exact_gradient(logits, kl: str) -> torch.Tensor:
    policy = logits[0].clone().requires_grad_()
    logprobs, reference = torch.log_softmax(policy, -1), torch.log_softmax(logits[2], -1)
    first, second = (logprobs, reference) if kl == "reverse" else (reference, logprobs)
    (first.exp() * (first - second)).sum().backward()
    return policy.grad


@pytest.mark.parametrize("on_policy", [True, False])
@pytest.mark.parametrize("kl", ["reverse", "forward"])
def test_the_expected_gradient_is_exactly_that_of_the_named_divergence(logits, kl, on_policy):
    got, wanted = expected_gradient(logits, kl, on_policy=on_policy), exact_gradient(logits, kl)
    assert torch.allclose(got, wanted, rtol=0, atol=1e-12)
    assert torch.cosine_similarity(got, wanted, dim=0) > 0.9999


def test_the_two_directions_are_not_the_same(logits):
    cosine = torch.cosine_similarity(exact_gradient(logits, "reverse"), exact_gradient(logits, "forward"), dim=0)
    assert cosine < 0.95
