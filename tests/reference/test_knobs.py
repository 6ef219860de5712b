"""Every option of the loss by itself: loss and gradient by the logits, to 1e-12, against a loop over tokens.

The loop is made of small functions that a test replaces: the policy term, its weight, what is added to it, its share
of the average. Advantages are rewards minus the group's mean, so that zeros occur.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.reference.papers import centred, places, ratio, surrogate
from tests.reference.steps import Step, options, paceline_loss, random_step, token_entropies, token_logprobs

ROWS = range(9)
PLAIN = {"advantage": "none", "average": "token", "clip_eps_low": 0.2, "clip_eps_high": 0.28}

Number = Tensor | float
OfToken = Callable[[Step, Tensor, int, int], Number]
OfRow = Callable[[Step, int], float]


def clipped(step: Step, p: Tensor, row: int, t: int) -> Tensor:
    return -surrogate(ratio(step, p, row, t), centred(step, row), 0.2, 0.28)


def one(step: Step, p: Tensor, row: int, t: int) -> float:
    return 1.0


def nothing(step: Step, p: Tensor, row: int, t: int) -> float:
    return 0.0


def per_token(step: Step, row: int) -> float:
    return 1 / sum(step.lengths)


def loop(
    step: Step,
    logits: Tensor,
    *,
    term: OfToken = clipped,
    weight: OfToken = one,
    added: OfToken = nothing,
    share: OfRow = per_token,
    bonus: float = 0.0,
) -> Tensor:
    p, entropies = token_logprobs(logits, step.tokens), token_entropies(logits)
    total = torch.zeros((), dtype=torch.float64)
    for row, t in places(step, ROWS):
        token = weight(step, p, row, t) * term(step, p, row, t) + added(step, p, row, t) - bonus * entropies[row, t]
        total = total + share(step, row) * token
    return total


def assert_same(values: dict[str, object], **pieces: OfToken | OfRow | float) -> None:
    """The package under `PLAIN` and these options, and the loop with these pieces, agree in loss and gradient."""
    for seed in range(3):
        step, logits = random_step(seed)
        got = paceline_loss(
            step, token_logprobs(logits, step.tokens), token_entropies(logits), *options(PLAIN | values)
        )
        wanted = loop(step, logits, **pieces)
        gradients = [torch.autograd.grad(loss, logits, allow_unused=True)[0] for loss in (got, wanted)]
        assert got.item() == pytest.approx(wanted.item(), abs=1e-12)
        assert float((gradients[0] - gradients[1]).abs().max()) <= 1e-12


def test_clipping_alone():
    assert_same({})


@pytest.mark.parametrize(
    ("average", "share"),
    [
        ("token", per_token),
        ("sequence", lambda step, row: 1 / step.lengths[row] / 9),
        ("constant", lambda step, row: 1 / step.max_length / 9),
        ("prompt", lambda step, row: 1 / sum(step.lengths[other] for other in step.group_of(row)) / 3),
    ],
)
def test_each_average(average, share):
    assert_same({"average": average}, share=share)


def test_dual_clip_holds_the_cost_of_bad_tokens_only():
    def term(step, p, row, t):
        a, r = centred(step, row), ratio(step, p, row, t)
        held = a < 0 and r > 1.3
        return -1.3 * a if held else clipped(step, p, row, t)

    assert_same({"bound_shape": (1.3,)}, term=term)


def test_no_bound():
    assert_same({"bound": "none"}, term=lambda step, p, row, t: -ratio(step, p, row, t) * centred(step, row))


def test_cispo_at_a_bound_that_bites():
    def term(step, p, row, t):
        return -min(ratio(step, p, row, t).item(), 1.1) * centred(step, row) * p[row, t]

    assert_same({"bound": "cispo", "clip_eps_high": 0.1}, term=term)


def test_the_gate_of_sapo():
    # arXiv:2511.20347: A * (4 / tau) / (1 + exp(-tau * (ratio - 1))), tau 1 for good and 1.05 for bad tokens
    def term(step, p, row, t):
        a, r = centred(step, row), ratio(step, p, row, t)
        tau = 1.0 if a > 0 else 1.05
        return -a * 4 / tau / (1 + torch.exp(-tau * (r - 1)))

    assert_same({"bound": "sapo"}, term=term)


def sequence_ratio(step: Step, p: Tensor, row: int) -> Tensor:
    product = math.prod(ratio(step, p, row, t) for t in range(step.lengths[row]))
    return product ** (1 / step.lengths[row])


@pytest.mark.parametrize("bound", ["clip", "none", "sapo", "cispo"])
def test_a_ratio_of_sequences_under_every_bound(bound):
    def term(step, p, row, t):
        a, s = centred(step, row), sequence_ratio(step, p, row)
        tau = 1.0 if a > 0 else 1.05
        return {
            "clip": -surrogate(s, a, 0.2, 0.28),
            "none": -s * a,
            "sapo": -a * 4 / tau * torch.sigmoid(tau * (s - 1)),
            "cispo": -min(s.item(), 1.05) * a * p[row, t],
        }[bound]

    high = 0.05 if bound == "cispo" else 0.28
    assert_same({"ratio_level": "sequence", "bound": bound, "clip_eps_high": high}, term=term)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("kind", ["truncate", "mask"])
def test_rollout_correction(kind, level):
    def weight(step, p, row, t):
        of_tokens = (step.old[row] - step.rollout[row]).exp()
        w = float(of_tokens[t] if level == "token" else of_tokens[: step.lengths[row]].prod())
        beyond = 1.2 if kind == "truncate" else 0.0
        return w if w <= 1.2 else beyond

    values = {"rollout_correction": f"{level}_{kind}", "correction_bounds": (0.0, 1.2)}
    assert_same(values, weight=weight)


def test_the_off_policy_mask_drops_bad_sequences_that_the_policy_left():
    def weight(step, p, row, t):
        drift = [(step.rollout[row, s] - p[row, s]).item() for s in range(step.lengths[row])]
        return 0.0 if centred(step, row) < 0 and sum(drift) / len(drift) > 0.1 else 1.0

    assert_same({"off_policy_threshold": 0.1}, weight=weight)


def kept(step: Step, p: Tensor, row: int, t: int) -> float:
    ratios = [ratio(step, p, row, s).item() for s in range(step.lengths[row])]
    return 0.0 if sum(ratios) / len(ratios) > 1.2 else 1.0


def test_the_skip_threshold_leaves_out_a_completion_and_nothing_else():
    assert_same({"skip_threshold": 1.2}, weight=kept)


@pytest.mark.parametrize(
    ("average", "share"), [("token", per_token), ("sequence", lambda step, row: 1 / step.lengths[row] / 9)]
)
def test_the_entropy_bonus_is_weighed_as_the_loss_is(average, share):
    assert_same({"entropy_coef": 0.03, "average": average}, share=share, bonus=0.03)


def penalty(kl: str) -> OfToken:
    """The forward one is Eq. 4 of arXiv:2402.03300, differentiated inside the loss as GRPO's code does."""

    def added(step, p, row, t):
        delta = p[row, t] - step.reference[row, t]
        term = delta**2 / 2 if kl == "reverse" else torch.exp(-delta) - 1 + delta
        return 0.3 * ratio(step, p, row, t).item() * term

    return added


@pytest.mark.parametrize("kl", ["reverse", "forward"])
def test_the_penalty_of_each_direction_away_from_the_old_policy(kl):
    assert_same({"beta": 0.3, "kl": kl}, added=penalty(kl))


def test_masks_and_weights_leave_kl_and_entropy_alone():
    values = {"beta": 0.3, "rollout_correction": "token_mask", "correction_bounds": (0.0, 1e-9)}
    assert_same(values, weight=nothing, added=penalty("reverse"))


def test_a_skipped_completion_has_no_kl_either_as_its_ratio_would_explode_in_it():
    alone = penalty("reverse")
    assert_same(
        {"beta": 0.3, "skip_threshold": 1.2},
        weight=kept,
        added=lambda step, p, row, t: kept(step, p, row, t) * alone(step, p, row, t),
    )
