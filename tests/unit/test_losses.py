import math

import pytest
import torch

from paceline.losses import clipped_policy_loss, kl_estimate, kl_penalty, token_logprobs


def policy_loss(ratio: float, advantage: float) -> torch.Tensor:
    return clipped_policy_loss(
        torch.tensor([math.log(ratio)]),
        torch.zeros(1),
        torch.tensor([advantage]),
        clip_eps_low=0.2,
        clip_eps_high=0.28,
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.0, 2.0, -2.0),  # on-policy: the advantage itself
        (1.1, 1.0, -1.1),  # inside the bounds: ratio times advantage
        (1.5, 1.0, -1.28),  # raised too far: held at 1 + 0.28
        (1.5, -1.0, 1.5),  # raised although bad: full cost
        (0.5, -1.0, 0.8),  # lowered too far: held at 1 - 0.2
        (0.5, 1.0, -0.5),  # lowered although good: full cost
    ],
)
def test_clip_bites_only_where_the_update_would_go_too_far(ratio, advantage, loss):
    assert policy_loss(ratio, advantage).item() == pytest.approx(loss)


@pytest.mark.parametrize(
    ("ratio", "advantage", "gradient"),
    [(1.1, 1.0, -1.1), (1.5, 1.0, 0.0), (1.5, -1.0, 1.5), (0.5, -1.0, 0.0), (0.5, 1.0, -0.5)],
)
def test_a_clipped_token_has_no_gradient_and_any_other_has_ratio_times_advantage(ratio, advantage, gradient):
    logprobs = torch.tensor([math.log(ratio)], requires_grad=True)
    bounds = {"clip_eps_low": 0.2, "clip_eps_high": 0.28}
    clipped_policy_loss(logprobs, torch.zeros(1), torch.tensor([advantage]), **bounds).sum().backward()
    assert logprobs.grad.item() == pytest.approx(gradient)


def test_kl_penalties_have_the_values_of_their_formulas():
    logprobs, old, ref = torch.tensor([-1.0]), torch.tensor([-1.5]), torch.tensor([-1.2])
    ratio = math.exp(0.5)
    assert kl_penalty(logprobs, old, ref, kl="reverse").item() == pytest.approx(ratio * 0.2**2 / 2)
    assert kl_penalty(logprobs, old, ref, kl="forward").item() == pytest.approx(ratio * (math.exp(-0.2) - 1 + 0.2))
    assert kl_estimate(logprobs, ref).item() == pytest.approx(math.exp(-0.2) - 1 + 0.2)


@pytest.mark.parametrize("chunk_elements", [1, 21, 1 << 24])
@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_chunked_logprobs_equal_log_softmax_of_the_scaled_logits(temperature, chunk_elements):
    generator = torch.Generator().manual_seed(0)
    hidden, head = (torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (9, 7))
    targets = torch.randint(7, (9,), generator=generator)
    logprobs, entropy = token_logprobs(hidden, head, targets, temperature=temperature, chunk_elements=chunk_elements)
    wanted = torch.log_softmax(hidden @ head.T / temperature, dim=-1)
    assert torch.allclose(logprobs, wanted.gather(1, targets[:, None])[:, 0], rtol=0, atol=1e-14)
    # a difference of numbers of about 15, so of their last digits
    assert torch.allclose(entropy, -(wanted.exp() * wanted).sum(-1), rtol=0, atol=1e-13)


def test_chunked_logprobs_have_the_gradient_of_their_definition():
    generator = torch.Generator().manual_seed(1)
    hidden, head = (torch.randn(n, 3, generator=generator, dtype=torch.float64).requires_grad_() for n in (5, 4))
    targets = torch.tensor([0, 3, 3, 1, 2])

    def logprobs(hidden, head):
        return token_logprobs(hidden, head, targets, temperature=0.8, chunk_elements=8)[0]

    assert torch.autograd.gradcheck(logprobs, (hidden, head))


def test_bfloat16_hidden_states_give_float32_logprobs():
    hidden, head = torch.randn(4, 8).bfloat16(), torch.randn(6, 8)
    logprobs, _ = token_logprobs(hidden, head, torch.tensor([0, 1, 2, 3]), temperature=1.0)
    wanted = torch.log_softmax((hidden @ head.bfloat16().T).float(), dim=-1)[range(4), range(4)]
    assert logprobs.dtype == torch.float32
    assert torch.allclose(logprobs, wanted, atol=1e-6)


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(ValueError, match=r"temperature must be above 0, got 0\.0"):
        token_logprobs(torch.zeros(1, 2), torch.zeros(3, 2), torch.tensor([0]), temperature=0.0)
