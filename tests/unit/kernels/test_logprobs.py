"""Chunked logprobs and entropies from hidden states have the values and gradients of a plain softmax."""

import pytest
import torch
from torch import Tensor

from paceline.kernels.cpu.logits import logit_passes
from paceline.kernels.logprobs import HeadRule, token_logprobs


def random_case(seed: int, *, rows: int, width: int, vocab: int) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states and head in float64 that ask for gradients, and targets."""
    generator = torch.Generator().manual_seed(seed)
    hidden, head = (torch.randn(n, width, generator=generator, dtype=torch.float64) for n in (rows, vocab))
    return hidden.requires_grad_(), head.requires_grad_(), torch.randint(vocab, (rows,), generator=generator)


def plain(hidden: Tensor, head: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The definition, all logits at once."""
    log_softmax = torch.log_softmax(hidden @ head.T / temperature, dim=-1)
    return log_softmax.gather(1, targets[:, None])[:, 0], -(log_softmax.exp() * log_softmax).sum(-1)


CHUNKS = [(1, 1), (1, 4), (21, 5), (1 << 24, 256)]
"""Logits in float32 at once, and rows of a product: one row of each, ends that do not meet, all in one."""


@pytest.mark.parametrize(("elements", "rows"), CHUNKS)
@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_chunked_logprobs_equal_log_softmax_of_the_scaled_logits(temperature, elements, rows):
    hidden, head, targets = random_case(0, rows=9, width=5, vocab=7)
    logprobs, entropy = token_logprobs(
        hidden, head, targets, temperature=temperature, chunk_elements=elements, product_rows=rows
    )
    wanted, wanted_entropy = plain(hidden, head, targets, temperature)
    assert torch.allclose(logprobs, wanted, rtol=0, atol=1e-14)
    # a difference of numbers of about 15, so of their last digits
    assert torch.allclose(entropy, wanted_entropy, rtol=0, atol=1e-13)


@pytest.mark.parametrize("output", [0, 1], ids=["logprobs", "entropy"])
def test_logprobs_and_entropy_have_the_gradients_of_finite_differences(output):
    hidden, head, targets = random_case(1, rows=5, width=3, vocab=4)

    def chosen(hidden, head):
        return token_logprobs(hidden, head, targets, temperature=0.8, chunk_elements=8)[output]

    assert torch.autograd.gradcheck(chosen, (hidden, head))


@pytest.mark.parametrize(("elements", "rows"), CHUNKS)
@pytest.mark.parametrize(("of_logprob", "of_entropy"), [(1.0, 0.0), (0.0, 1.0), (0.7, -0.3)])
def test_the_chunked_backward_is_autograd_of_a_plain_softmax(of_logprob, of_entropy, elements, rows):
    def gradients(logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, ...]:
        share = torch.linspace(-1, 2, len(logprobs), dtype=torch.float64)  # another weight for every token
        loss = (share * (of_logprob * logprobs + of_entropy * entropy)).sum()
        return torch.autograd.grad(loss, (hidden, head))

    hidden, head, targets = random_case(2, rows=9, width=4, vocab=11)
    got = gradients(*token_logprobs(hidden, head, targets, temperature=1.3, chunk_elements=elements, product_rows=rows))
    wanted = gradients(*plain(hidden, head, targets, 1.3))
    for one, other in zip(got, wanted, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-14)


def test_a_frozen_head_still_passes_the_gradient_on_to_the_hidden_states():
    hidden, head, targets = random_case(4, rows=6, width=4, vocab=5)
    logprobs, entropy = token_logprobs(hidden, head.detach(), targets, temperature=0.5)
    wanted = sum(part.sum() for part in plain(hidden, head, targets, 0.5))
    got = torch.autograd.grad(logprobs.sum() + entropy.sum(), hidden)[0]
    assert torch.allclose(got, torch.autograd.grad(wanted, hidden)[0], rtol=0, atol=1e-14)


def test_bfloat16_hidden_states_give_float32_logprobs():
    hidden, head, _ = random_case(6, rows=4, width=8, vocab=6)
    hidden, head = hidden.detach().bfloat16(), head.detach().float()
    logprobs, _ = token_logprobs(hidden, head, torch.tensor([0, 1, 2, 3]), temperature=1.0)
    wanted = torch.log_softmax((hidden @ head.bfloat16().T).float(), dim=-1)[range(4), range(4)]
    assert logprobs.dtype == torch.float32
    assert torch.allclose(logprobs, wanted, atol=1e-6)


def test_bfloat16_gradients_are_those_of_the_rounded_operands():
    hidden, head, targets = random_case(5, rows=40, width=16, vocab=50)
    half, single = hidden.detach().bfloat16().requires_grad_(), head.detach().float().requires_grad_()
    share = torch.linspace(-1, 2, 40)
    got = torch.autograd.grad((share * token_logprobs(half, single, targets, temperature=1.0)[0]).sum(), (half, single))
    exact = [half.detach().double().requires_grad_(), single.detach().bfloat16().double().requires_grad_()]
    wanted = torch.autograd.grad((share * plain(*exact, targets, 1.0)[0]).sum(), exact)
    for one, other in zip(got, wanted, strict=True):
        assert (one.double() - other).norm() < 1e-2 * other.norm()


def test_the_gradient_of_a_sure_token_survives_bfloat16():
    # 1 - p = 1.5e-4: a sum with the rounded p, which is 1, would leave 0
    hidden, head = torch.tensor([[8.75]]).bfloat16().requires_grad_(), torch.tensor([[1.0], [0.0]])
    logprobs, _ = token_logprobs(hidden, head, torch.tensor([0]), temperature=1.0)
    assert torch.autograd.grad(logprobs.sum(), hidden)[0].item() == pytest.approx(1.583e-4, rel=1e-2)


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(ValueError, match=r"temperature must be above 0, got 0\.0"):
        token_logprobs(torch.zeros(1, 2), torch.zeros(3, 2), torch.tensor([0]), temperature=0.0)


@pytest.mark.parametrize(
    ("rule", "logprob"),
    [
        (HeadRule(scale=0.5), -0.3133),  # logits 1 and 0: -log(1 + e^-1)
        (HeadRule(scale=0.5, cap=1.0), -0.3832),  # tanh(1) = 0.7616 and 0
    ],
)
def test_logits_are_scaled_and_capped_by_the_models_rule(rule, logprob):
    hidden, head = torch.tensor([[1.0]]), torch.tensor([[2.0], [0.0]])
    found, _ = token_logprobs(hidden, head, torch.tensor([0]), temperature=1.0, rule=rule)
    assert found.item() == pytest.approx(logprob, abs=5e-5)


@pytest.mark.parametrize("rule", [HeadRule(scale=0.3), HeadRule(cap=2.0), HeadRule(scale=0.3, cap=2.0)])
def test_logits_by_a_rule_have_the_values_and_gradients_of_a_plain_softmax(rule):
    hidden, head, targets = random_case(5, rows=9, width=4, vocab=11)
    hidden = (3 / rule.scale * hidden).detach().requires_grad_()  # some logits lie far beyond the cap of 2
    logits = rule.scale * hidden @ head.T
    assert logits.abs().max() > 4
    if rule.cap is not None:
        logits = rule.cap * torch.tanh(logits / rule.cap)
    log_softmax = torch.log_softmax(logits / 0.8, dim=-1)
    wanted = log_softmax.gather(1, targets[:, None])[:, 0], -(log_softmax.exp() * log_softmax).sum(-1)
    got = token_logprobs(hidden, head, targets, temperature=0.8, chunk_elements=33, product_rows=6, rule=rule)
    share = torch.linspace(-1, 2, 9, dtype=torch.float64)
    for one, other in zip(got, wanted, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-13)
        ours, theirs = (
            torch.autograd.grad((share * each).sum(), (hidden, head), retain_graph=True) for each in (one, other)
        )
        for mine, plain_one in zip(ours, theirs, strict=True):
            assert torch.allclose(mine, plain_one, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_soft_cap_goes_through_the_kernels_as_through_torch(dtype):
    hidden, head, targets = random_case(6, rows=7, width=8, vocab=50)
    hidden = (4 * hidden).detach().to(dtype).requires_grad_()
    head = head.detach().to(dtype).requires_grad_()
    found = []
    for passes in (None, logit_passes(hidden.device, dtype)):
        both = token_logprobs(hidden, head, targets, temperature=1.0, passes=passes, rule=HeadRule(scale=0.9, cap=5.0))
        found.append((*both, *torch.autograd.grad(both[0].sum() + both[1].sum(), (hidden, head))))
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one.float(), other.float(), rtol=0, atol=1e-4 if dtype == torch.float32 else 0.05)
