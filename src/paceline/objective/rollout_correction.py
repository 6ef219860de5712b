"""Corrections for rollouts of another policy or engine: importance weights, and sequences to leave out.

N completion tokens of S sequences laid end to end. All weights are without gradient.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from paceline.objective.policy_loss import each_token, sequence_means, sequence_sums


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
