"""Policy loss per token: ratio and its bounds, KL penalty, weights for rollouts of another policy, sums over sequences.

N completion tokens of a micro-batch are laid end to end. A ratio belongs to a token or, equal for all its tokens, to a
sequence (`policy_ratio`); the bounds below then apply to sequences. Nothing is averaged here: `token_weights` in
`objective/micro_batches.py` gives each token its share of the step. `output_size` is always passed to
`repeat_interleave`, so that torch does not synchronise with the device to add up the S lengths.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

VESPO_LOG_RANGE = (math.log(1e-8), 20.0)
"""Range of a completion's log weight in VESPO, and of each correction's part in it. A token's log ratio is clamped to
[-20, 20]."""

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

    A ratio above e^80 is clamped to it, without gradient, so that no bound or mask multiplies infinity.

    Source of `sequence`: GSPO, arXiv:2507.18071, Eq. 7.
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


def gated_policy_loss(
    ratio: Float[Tensor, " N"], advantages: Float[Tensor, " N"], *, temperatures: Sequence[float]
) -> Float[Tensor, " N"]:
    """Return the loss with a smooth gate instead of clipping; its slope at ratio 1 is the plain surrogate's.

        loss = -(4 / tau) * sigmoid(tau * (ratio - 1)) * A, tau the first temperature where A > 0, else the second

    Source: SAPO, arXiv:2511.20347, whose temperatures are 1 and 1.05: the sharper gate for the second was more stable.
    """
    positive, negative = temperatures
    tau = torch.full_like(advantages, negative).masked_fill(advantages > 0, positive)
    return -(4 / tau) * torch.sigmoid(tau * (ratio - 1)) * advantages


def vespo_policy_loss(
    logprobs: Float[Tensor, " N"],
    old_logprobs: Float[Tensor, " N"],
    advantages: Float[Tensor, " N"],
    lengths: Int[Tensor, " S"],
    *,
    shape: Sequence[float],
    correction: Float[Tensor, " N"] | None = None,
) -> Float[Tensor, " N"]:
    """Return the policy gradient loss under a smooth weight of the whole completion, without gradient through it.

        loss = -phi(w) * A * logprobs,  phi(w) = w^k * exp(lambda * (1 - w))
        log w = sum over the completion of log(policy / old), and of log(correction) where there is one

    `shape`: k and lambda where A >= 0, then where A < 0. phi(1) = 1, and both very small and very large weights vanish.
    Source: VESPO, arXiv:2602.10693, with the ranges of `VESPO_LOG_RANGE`.
    """
    low, high = VESPO_LOG_RANGE
    log_ratio = (logprobs - old_logprobs).detach().clamp(-high, high)
    if correction is not None:
        log_ratio = log_ratio + correction.log().clamp(low, high)
    log_weight = sequence_sums(log_ratio, lengths).clamp(low, high)
    log_weight = each_token(log_weight, lengths, num_tokens=len(log_ratio))
    is_good = advantages >= 0
    k_good, lambda_good, k_bad, lambda_bad = shape
    k = torch.full_like(log_weight, k_bad).masked_fill(is_good, k_good)
    scale = torch.full_like(log_weight, lambda_bad).masked_fill(is_good, lambda_good)
    phi = torch.exp(scale + k * log_weight - scale * log_weight.exp())
    return -phi * advantages * logprobs


def unbounded_policy_loss(ratio: Float[Tensor, " N"], advantages: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Return the importance-weighted policy gradient loss, -ratio * A: REINFORCE where the ratio is 1."""
    return -ratio * advantages


def kl_penalty(
    logprobs: Float[Tensor, " N"],
    old_logprobs: Float[Tensor, " N"],
    ref_logprobs: Float[Tensor, " N"],
    *,
    kl: Literal["reverse", "forward"],
) -> Float[Tensor, " N"]:
    """Return a penalty per token whose expected gradient is that of the named KL, over tokens of the old policy.

        delta = logprobs - ref_logprobs;  ratio = stop_gradient(exp(logprobs - old_logprobs))
        reverse, KL(policy || reference):  ratio * delta^2 / 2
        forward, KL(reference || policy):  ratio * (exp(-delta) - 1 + delta)

    `forward` uses the estimator k3 (`kl_estimate`): unbiased as a value of the reverse KL, yet differentiated inside a
    loss it gives the forward KL's gradient. `reverse` uses k2, which gives the reverse KL's. The ratio is clamped to
    e^80, as in `policy_ratio`: the gradient of a token that is left out is 0 times it.
    """
    ratio = torch.exp((logprobs - old_logprobs).detach().clamp(max=LOG_RATIO_LIMIT))
    if kl == "reverse":
        return ratio * (logprobs - ref_logprobs).square() / 2
    return ratio * kl_estimate(logprobs, ref_logprobs)


def kl_estimate(logprobs: Float[Tensor, " N"], ref_logprobs: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Return an unbiased, never negative estimate of KL(policy || reference) per token: the estimator k3.

        exp(-delta) - 1 + delta, delta = logprobs - ref_logprobs

    Its gradient, which GRPO (arXiv:2402.03300, Eq. 4) takes, is that of KL(reference || policy) for tokens of the
    policy itself, and of no KL for those of an older one. Times the ratio to that one, differentiated too, it
    is that of KL(policy || reference): DeepSeek-V3.2, arXiv:2512.02556, section 3.1.
    """
    delta = logprobs - ref_logprobs
    # held at e^80: 0, the ratio of a token that the policy gave up, times infinity would be NaN
    return torch.exp((-delta).clamp(max=LOG_RATIO_LIMIT)) - 1 + delta


def rollout_weights(
    old_logprobs: Float[Tensor, " N"],
    rollout_logprobs: Float[Tensor, " N"],
    lengths: Int[Tensor, " S"],
    *,
    mode: str,
    bounds: Sequence[float],
) -> Float[Tensor, " N"]:
    """Return the importance weight of the trainer's distribution over the engine's, for each token.

        weight = exp(old_logprobs - rollout_logprobs)
        token_     of the token
        sequence_  multiplied over its sequence
        _truncate  weight held between the two `bounds`
        _mask      weight where it lies between them, else 0

    The product over a sequence is unbiased and leaves ever less of long sequences. Source: truncated importance
    sampling, "Your efficient RL framework secretly brings you off-policy RL training" (Yao et al., 2025); masking,
    "When speed kills stability" (Liu et al., 2025).
    """
    level, kind = mode.split("_")
    log_weight = (old_logprobs - rollout_logprobs).detach()
    if level == "sequence":
        log_weight = each_token(sequence_sums(log_weight, lengths), lengths, num_tokens=len(log_weight))
    weight = torch.exp(log_weight)
    least, most = bounds
    if kind == "truncate":
        return weight.clamp(least, most)
    return torch.where((weight >= least) & (weight <= most), weight, 0.0)


def off_policy_sequences(
    logprobs: Float[Tensor, " N"],
    rollout_logprobs: Float[Tensor, " N"],
    advantages: Float[Tensor, " N"],
    lengths: Int[Tensor, " S"],
    *,
    threshold: float,
) -> Bool[Tensor, " N"]:
    """Mark tokens of sequences with negative advantage that the policy would hardly sample any more.

    A < 0 and mean over the sequence of (rollout_logprobs - logprobs) > threshold.
    Source: DeepSeek-V3.2, arXiv:2512.02556, section 3.1.
    """
    drift = (rollout_logprobs - logprobs).detach()
    drift = each_token(sequence_means(drift, lengths), lengths, num_tokens=len(drift))
    return (advantages < 0) & (drift > threshold)


def runaway_sequences(
    logprobs: Float[Tensor, " N"], old_logprobs: Float[Tensor, " N"], lengths: Int[Tensor, " S"], *, threshold: float
) -> Bool[Tensor, " N"]:
    """Mark tokens of sequences whose mean ratio to the old policy is above `threshold`."""
    ratio = torch.exp((logprobs - old_logprobs).detach())
    return each_token(sequence_means(ratio, lengths), lengths, num_tokens=len(ratio)) > threshold


def top_entropy_threshold(entropies: Float[Tensor, " N"], *, share: float) -> float:
    """Return the entropy that the top `share` of an update's tokens have at least: their quantile 1 - share.

    Interpolates between two tokens, as `torch.quantile` does, and subtracts a rounding error, so that tokens of equal
    entropy are all chosen or none, however a step is cut.

    >>> round(top_entropy_threshold(torch.tensor([0.1, 0.4, 0.2, 0.3, 0.5]), share=0.5), 3)
    0.3

    Source: Beyond the 80/20 rule, arXiv:2506.01939, whose share is 0.2.
    """
    ordered = entropies.double().sort().values
    position = (len(ordered) - 1) * (1 - share)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    threshold = float(ordered[low] + (position - low) * (ordered[high] - ordered[low]))
    return threshold - float(torch.finfo(entropies.dtype).eps ** 0.5) * abs(threshold)


def sequence_sums(values: Float[Tensor, " N"], lengths: Int[Tensor, " S"]) -> Float[Tensor, " S"]:
    """Return the sum of each sequence's values.

    >>> sequence_sums(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2, 1]))
    tensor([3., 4.])
    """
    owner = torch.repeat_interleave(lengths, output_size=len(values))
    return values.new_zeros(len(lengths)).index_add(0, owner, values)


def sequence_means(values: Float[Tensor, " N"], lengths: Int[Tensor, " S"]) -> Float[Tensor, " S"]:
    """Return the mean of each sequence's values.

    >>> sequence_means(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2, 1]))
    tensor([1.5000, 4.0000])
    """
    return sequence_sums(values, lengths) / lengths


def each_token(values: Float[Tensor, " S"], lengths: Int[Tensor, " S"], *, num_tokens: int) -> Float[Tensor, " N"]:
    """Repeat the value of each sequence for each of its tokens; `num_tokens` is N.

    >>> each_token(torch.tensor([5.0, 7.0]), torch.tensor([2, 1]), num_tokens=3)
    tensor([5., 5., 7.])
    """
    return torch.repeat_interleave(values, lengths, output_size=num_tokens)
