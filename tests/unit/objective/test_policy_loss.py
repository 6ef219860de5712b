"""Policy terms and KL divergences of single tokens, against numbers worked out by hand."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paceline.objective.policy_loss import (
    cispo_policy_loss,
    clipped_policy_loss,
    gated_policy_loss,
    kl_estimate,
    kl_penalty,
    policy_ratio,
    unbounded_policy_loss,
    vespo_policy_loss,
)

BOUNDS = {"clip_eps_low": 0.2, "clip_eps_high": 0.28}


def value_and_slope(loss: Callable[[Tensor], Tensor], ratio: float) -> tuple[float, float]:
    """A token's loss, and its derivative by the token's logprob, where the ratio to the old policy is `ratio`."""
    logprob = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    token_loss = loss(policy_ratio(logprob, torch.zeros(1), torch.tensor([1]), level="token"))
    (slope,) = torch.autograd.grad(token_loss.sum(), logprob)
    return token_loss.item(), slope.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),  # on-policy: the advantage itself
        (1.1, 1.0, -1.1, -1.1),  # inside the bounds: ratio times advantage
        (1.5, 1.0, -1.28, 0.0),  # raised too far: held at 1 + 0.28, no gradient
        (1.5, -1.0, 1.5, 1.5),  # raised although bad: full cost
        (0.5, -1.0, 0.8, 0.0),  # lowered too far: held at 1 - 0.2, no gradient
        (0.5, 1.0, -0.5, -0.5),  # lowered although good: full cost
    ],
)
def test_clip_bites_only_where_the_update_would_go_too_far(ratio, advantage, loss, slope):
    got = value_and_slope(lambda r: clipped_policy_loss(r, torch.tensor([advantage]), **BOUNDS), ratio)
    assert got == pytest.approx((loss, slope))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (2.9, -1.0, 2.9, 2.9),  # below the second bound: full cost
        (5.0, -1.0, 3.0, 0.0),  # beyond it: held at 3, no gradient
        (5.0, 1.0, -1.28, 0.0),  # a good token knows the first bound only
        (0.5, -1.0, 0.8, 0.0),  # as without it
    ],
)
def test_dual_clip_bounds_the_cost_of_a_bad_token_that_became_likelier(ratio, advantage, loss, slope):
    advantages = torch.tensor([advantage])
    got = value_and_slope(lambda r: clipped_policy_loss(r, advantages, **BOUNDS, dual_clip=3.0), ratio)
    assert got == pytest.approx((loss, slope))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.0, 2.0, -4.0),  # (4 / 1) * sigmoid(0) * 2
        (1.0, -2.0, 2 / 1.05 * 2),  # (4 / 1.05) * sigmoid(0) * 2: the value, not the slope, knows tau
        (2.0, 1.0, -4 / (1 + math.exp(-1.0))),
        (2.0, -1.0, 4 / 1.05 / (1 + math.exp(-1.05))),
    ],
)
def test_the_gate_has_the_values_of_its_formula(ratio, advantage, loss):
    got, _ = value_and_slope(lambda r: gated_policy_loss(r, torch.tensor([advantage]), temperatures=(1.0, 1.05)), ratio)
    assert got == pytest.approx(loss)


@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_the_gates_slope_is_the_plain_surrogates_at_ratio_one_and_dies_away_far_from_it(advantage):
    def slope(ratio: float) -> float:
        return value_and_slope(
            lambda r: gated_policy_loss(r, torch.tensor([advantage]), temperatures=(1.0, 1.05)), ratio
        )[1]

    assert slope(1.0) == pytest.approx(-advantage)
    assert abs(slope(15.0)) < 1e-3 * abs(advantage)


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight"),
    [(0.1, 1.0, 0.1), (0.1, -1.0, 0.1), (4.0, 1.0, 4.0), (8.0, 1.0, 5.0), (8.0, -1.0, 5.0)],
)
def test_cispo_weighs_the_plain_policy_gradient_and_stops_none(ratio, advantage, weight):
    logprob = torch.tensor([-2.0], requires_grad=True)
    advantages = torch.tensor([advantage])
    loss = cispo_policy_loss(torch.tensor([ratio], requires_grad=True), logprob, advantages, max_ratio=5.0)
    loss.sum().backward()
    assert loss.item() == pytest.approx(2 * weight * advantage)  # -weight * A * logprob
    assert logprob.grad.item() == pytest.approx(-weight * advantage)


def test_without_a_bound_the_loss_is_ratio_times_advantage():
    got = value_and_slope(lambda r: unbounded_policy_loss(r, torch.tensor([-0.5])), 7.0)
    assert got == pytest.approx((3.5, 3.5))


def test_a_sequences_ratio_is_the_geometric_mean_of_its_tokens_and_moves_them_all():
    old = torch.zeros(3, dtype=torch.float64)
    logprobs = torch.log(torch.tensor([4.0, 1.0, 0.5], dtype=torch.float64)).requires_grad_()
    ratio = policy_ratio(logprobs, old, torch.tensor([2, 1]), level="sequence")
    assert ratio.tolist() == pytest.approx([2.0, 2.0, 0.5])
    (slopes,) = torch.autograd.grad(ratio[0], logprobs)
    assert slopes.tolist() == pytest.approx([1.0, 1.0, 0.0])  # 2 * 1/2 for each token of the first sequence


def test_kl_penalties_have_the_values_of_their_formulas():
    logprobs, old, ref = torch.tensor([-1.0]), torch.tensor([-1.5]), torch.tensor([-1.2])
    ratio = math.exp(0.5)
    assert kl_penalty(logprobs, old, ref, kl="reverse").item() == pytest.approx(ratio * 0.2**2 / 2)
    assert kl_penalty(logprobs, old, ref, kl="forward").item() == pytest.approx(ratio * (math.exp(-0.2) - 1 + 0.2))
    assert kl_estimate(logprobs, ref).item() == pytest.approx(math.exp(-0.2) - 1 + 0.2)


def test_the_estimator_has_the_slope_of_its_formula_and_no_ratio():
    logprobs, ref = torch.tensor([-1.0], requires_grad=True), torch.tensor([-1.2])
    (slope,) = torch.autograd.grad(kl_estimate(logprobs, ref), logprobs)
    assert slope.item() == pytest.approx(1 - math.exp(-0.2))


@pytest.mark.parametrize("kl", ["reverse", "forward"])
def test_a_token_that_the_policy_gave_up_has_a_finite_penalty_and_slope(kl):
    logprobs, old, ref = torch.tensor([-120.0], requires_grad=True), torch.tensor([-1.0]), torch.tensor([-1.5])
    penalty = kl_penalty(logprobs, old, ref, kl=kl)  # ratio e^-119 is 0 in float32, where e^118.5 would be infinity
    (slope,) = torch.autograd.grad(penalty, logprobs)
    assert (penalty.item(), slope.item()) == (0.0, 0.0)
    assert kl_estimate(logprobs, ref).item() == pytest.approx(math.exp(80))


def vespo_tokens(ratios: list[float], advantages: list[float]) -> tuple[torch.Tensor, ...]:
    """Two sequences, of 2 tokens and of 1: logprobs, old logprobs, advantages, lengths."""
    old = torch.full((3,), -2.0, dtype=torch.float64)
    logprobs = (old + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    return logprobs, old, torch.tensor(advantages, dtype=torch.float64), torch.tensor([2, 1])


def test_vespo_weighs_whole_completions_without_gradient_through_the_weight():
    # w = 2 * 1.5 = 3 with A > 0: 3^2 e^(3 (1 - 3)) = 9 e^-6; w = 0.5 with A < 0: 0.5^3 e^(2 (1 - 0.5)) = e / 8
    logprobs, *rest = vespo_tokens([2.0, 1.5, 0.5], [1.0, 1.0, -2.0])
    losses = vespo_policy_loss(logprobs, *rest, shape=(2.0, 3.0, 3.0, 2.0))
    phi = [9 * math.exp(-6)] * 2 + [math.e / 8]
    slopes = [-phi[0], -phi[1], 2 * phi[2]]
    values = [slope * logprob for slope, logprob in zip(slopes, logprobs.tolist(), strict=True)]
    assert losses.tolist() == pytest.approx(values)
    losses.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx(slopes)


def test_vespo_at_a_weight_of_one_is_the_policy_gradient_and_far_off_it_vanishes():
    shape = (2.0, 3.0, 3.0, 2.0)
    plain = vespo_policy_loss(*vespo_tokens([1.0, 1.0, 1.0], [1.0, 1.0, -1.0]), shape=shape)
    assert plain.tolist() == pytest.approx([2.0, 2.0, -2.0])
    far = vespo_policy_loss(*vespo_tokens([1e9, 1e9, 1e-9], [1.0, 1.0, -1.0]), shape=shape)
    assert far.abs().max().item() < 1e-20
    # the correction multiplies the weight: 3 * (0.5 * 2/3) = 1, and a masked token takes it to 1e-8
    correction = torch.tensor([0.5, 2 / 3, 0.0], dtype=torch.float64)
    both = vespo_policy_loss(*vespo_tokens([2.0, 1.5, 1.0], [1.0, 1.0, 1.0]), shape=shape, correction=correction)
    logprobs = [-2 + math.log(2.0), -2 + math.log(1.5), -2.0]
    assert both.tolist() == pytest.approx([-logprobs[0], -logprobs[1], 2 * 1e-16 * math.exp(3 - 3e-8)])
