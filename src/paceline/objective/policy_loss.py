"""Policy loss per token: ratio to the old policy, and its bounds.

N completion tokens of a micro-batch are laid end to end. A ratio belongs to a token or, equal for all its tokens, to a
sequence (`policy_ratio`); the bounds below then apply to sequences.
"""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from paceline.objective.sequences import each_token, sequence_means

GATE_TEMPERATURES = (1.0, 1.05)
"""SAPO's temperatures for positive and negative advantages; the sharper gate for the second was more stable."""

LOG_RATIO_LIMIT = 80.0
"""Largest log ratio in nats: e^80 is finite in float32, e^89 is not, and infinity times a mask's 0 is NaN."""


def policy_ratio(
    logprobs: Float[Tensor, " N"],
    old_logprobs: Float[Tensor, " N"],
    lengths: Int[Tensor, " S"],
    *,
    level: Literal["token", "sequence"],
) -> Float[Tensor, " N"]:
    """Return the policy's probability over the old policy's, with its gradient.

        token     exp(logprobs - old_logprobs)
        sequence  exp(mean over the sequence of logprobs - old_logprobs), for each of its tokens

    Beyond e^80 it is held there, without gradient, so that what bounds or drops a token can.

    Source of the second: GSPO, arXiv:2507.18071, Eq. 7.
    """
    log_ratio = logprobs - old_logprobs
    if level == "sequence":
        log_ratio = each_token(sequence_means(log_ratio, lengths), lengths, num_tokens=len(log_ratio))
    return torch.exp(log_ratio.clamp(max=LOG_RATIO_LIMIT))


def clipped_policy_loss(
    ratio: Float[Tensor, " N"],
    advantages: Float[Tensor, " N"],
    *,
    clip_eps_low: float,
    clip_eps_high: float,
    dual_clip: float = 0.0,
) -> Float[Tensor, " N"]:
    """Return the clipped surrogate loss.

        loss = -min(ratio * A, clip(ratio, 1 - clip_eps_low, 1 + clip_eps_high) * A)
        and at most -dual_clip * A where A < 0 and dual_clip > 0

    Source: DAPO, arXiv:2503.14476, Eq. 8; equal bounds give GRPO, arXiv:2402.03300, Eq. 3, without its KL term. The
    second line: dual-clip PPO, arXiv:1912.09729.

    >>> one = torch.ones(1)
    >>> clipped_policy_loss(one, 2 * one, clip_eps_low=0.2, clip_eps_high=0.2)
    tensor([-2.])
    """
    clipped_ratio = ratio.clamp(1 - clip_eps_low, 1 + clip_eps_high)
    loss = -torch.minimum(ratio * advantages, clipped_ratio * advantages)
    if dual_clip > 0:
        loss = torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)
    return loss


def cispo_policy_loss(
    ratio: Float[Tensor, " N"], logprobs: Float[Tensor, " N"], advantages: Float[Tensor, " N"], *, max_ratio: float
) -> Float[Tensor, " N"]:
    """Return the policy gradient loss with a bounded importance weight, so that no token loses its gradient.

        loss = -stop_gradient(min(ratio, max_ratio)) * A * logprobs

    Source: MiniMax-M1, arXiv:2506.13585, Eq. 4 and 5. `max_ratio` is the bound itself, not its distance from 1.
    """
    return -ratio.detach().clamp(max=max_ratio) * advantages * logprobs


def gated_policy_loss(ratio: Float[Tensor, " N"], advantages: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Return the loss with a smooth gate instead of clipping; its slope at ratio 1 is the plain surrogate's.

        loss = -(4 / tau) * sigmoid(tau * (ratio - 1)) * A, tau = 1.0 where A > 0, else 1.05

    Source: SAPO, arXiv:2511.20347.
    """
    positive, negative = GATE_TEMPERATURES
    tau = torch.full_like(advantages, negative).masked_fill(advantages > 0, positive)
    return -(4 / tau) * torch.sigmoid(tau * (ratio - 1)) * advantages


def unbounded_policy_loss(ratio: Float[Tensor, " N"], advantages: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Return the importance-weighted policy gradient loss, -ratio * A: REINFORCE where the ratio is 1."""
    return -ratio * advantages
