"""The objective of a micro-batch: the loss of every token, composed of the terms that the options name.

Nothing here averages: the step's token weights do.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from paceline.config.objective import LossConfig
from paceline.objective.micro_batches import MicroBatch
from paceline.objective.own_loss import PolicyLoss, PolicyTokens
from paceline.objective.policy_loss import (
    cispo_policy_loss,
    clipped_policy_loss,
    gated_policy_loss,
    kl_estimate,
    kl_penalty,
    off_policy_sequences,
    policy_ratio,
    rollout_weights,
    runaway_sequences,
    unbounded_policy_loss,
    vespo_policy_loss,
)


def token_losses(
    batch: MicroBatch,
    logprobs: Float[Tensor, " N"],
    entropy: Float[Tensor, " N"],
    loss: LossConfig,
    named_loss: PolicyLoss | None = None,
    *,
    chosen: Bool[Tensor, " N"] | None = None,
) -> tuple[Float[Tensor, " N"], dict[str, Tensor]]:
    """The loss of each token, and sums over the tokens of what the terms did (names as in `UpdateStats`).

        loss = kept * (chosen * on_policy * weight * policy_loss + beta * kl_penalty - entropy_coef * chosen * entropy)

    where chosen is 0 for tokens below the top of `top_entropy_quantile`; weight is `rollout_correction`'s; on_policy is
    0 for sequences that `off_policy_threshold` leaves out, and kept for those of `skip_threshold`, whose ratio would
    explode in the KL too.

    Args:
        batch: the tokens, with their old logprobs and, under `beta`, those of the reference.
        logprobs: logprobs of the policy, with their gradient.
        entropy: entropies of the policy, with their gradient.
        loss: the options of the objective.
        named_loss: the policy loss where `bound` names a function.
        chosen: tokens whose policy term and entropy count, under `top_entropy_quantile`; None: all.
    """
    old = batch.old_logprobs
    assert old is not None, "the learner gives the old logprobs"
    ratio = policy_ratio(logprobs, old, batch.lengths, level=loss.ratio_level)
    rollout, advantages, lengths = batch.rollout_logprobs, batch.advantages, batch.lengths
    weight = None
    if loss.rollout_correction != "none":
        weight = rollout_weights(old, rollout, lengths, mode=loss.rollout_correction, bounds=loss.correction_bounds)
    if named_loss is None:
        losses = policy_loss(batch, logprobs, ratio, loss, weight)
    else:
        tokens = PolicyTokens(
            ratio=ratio,
            logprobs=logprobs,
            old_logprobs=old,
            rollout_logprobs=rollout,
            advantages=advantages,
            entropy=entropy,
            lengths=lengths,
        )
        losses = named_loss(tokens)
    losses, sums = _corrected(losses, batch, logprobs, ratio, loss, weight)
    if chosen is not None:
        losses, entropy = torch.where(chosen, losses, 0.0), torch.where(chosen, entropy, 0.0)
    sums["policy_loss"] = (batch.weights * losses).detach().sum()
    if batch.ref_logprobs is not None:
        if loss.kl == "reverse" or loss.kl == "forward":  # by direction, else by the estimator that is differentiated
            penalty = kl_penalty(logprobs, old, batch.ref_logprobs, kl=loss.kl)
        else:
            penalty = kl_estimate(logprobs, batch.ref_logprobs)
            penalty = ratio * penalty if loss.kl == "k3_ratio" else penalty
        losses = losses + loss.beta * penalty
        sums["kl"] = kl_estimate(logprobs.detach(), batch.ref_logprobs).sum()
    if loss.entropy_coef > 0:
        losses = losses - loss.entropy_coef * entropy
    if loss.entropy_target is not None:
        count = torch.ones_like(entropy) if chosen is None else chosen
        sums |= {"bonus_entropy": entropy.detach().sum(), "bonus_tokens": count.sum()}
    if loss.skip_threshold is not None:
        skipped = runaway_sequences(logprobs, old, batch.lengths, threshold=loss.skip_threshold)
        losses, sums["skipped"] = torch.where(skipped, 0.0, losses), skipped.sum()
    return losses, sums


def _corrected(
    losses: Tensor, batch: MicroBatch, logprobs: Tensor, ratio: Tensor, loss: LossConfig, weight: Tensor | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Apply the rollout correction and the off-policy mask to the policy term, and count the tokens of each."""
    advantages, moved = batch.advantages, ratio.detach()
    # tokens whose ratio stands beyond a bound on the side where the bound acts
    if loss.bound == "clip":
        low = ((moved < 1 - loss.clip_eps_low) & (advantages < 0)).sum()
        high = ((moved > 1 + loss.clip_eps_high) & (advantages > 0)).sum()
    else:
        low = torch.zeros((), dtype=torch.int64, device=moved.device)
        high = (moved > 1 + loss.clip_eps_high).sum() if loss.bound == "cispo" else low
    sums = {"clip_low": low, "clip_high": high}
    if weight is not None:
        if loss.bound != "vespo":  # there it is a part of the completion's weight
            losses = losses * weight
        least, most = loss.correction_bounds
        sums["correction_masked"] = ((weight == 0) | (weight == least) | (weight == most)).sum()
    if loss.off_policy_threshold is not None:
        dropped = off_policy_sequences(
            logprobs, batch.rollout_logprobs, advantages, batch.lengths, threshold=loss.off_policy_threshold
        )
        losses, sums["off_policy"] = torch.where(dropped, 0.0, losses), dropped.sum()
    return losses, sums


def policy_loss(
    batch: MicroBatch, logprobs: Tensor, ratio: Tensor, loss: LossConfig, correction: Tensor | None
) -> Float[Tensor, " N"]:
    """The policy term under the built-in bound that the options name. Only VESPO's reads the rollout correction."""
    advantages = batch.advantages
    if loss.bound == "clip":
        return clipped_policy_loss(
            ratio,
            advantages,
            clip_eps_low=loss.clip_eps_low,
            clip_eps_high=loss.clip_eps_high,
            dual_clip=loss.shape[0] if loss.shape else 0.0,
        )
    if loss.bound == "cispo":
        return cispo_policy_loss(ratio, logprobs, advantages, max_ratio=1 + loss.clip_eps_high)
    if loss.bound == "sapo":
        return gated_policy_loss(ratio, advantages, temperatures=loss.shape)
    if loss.bound == "vespo":
        assert batch.old_logprobs is not None
        return vespo_policy_loss(
            logprobs, batch.old_logprobs, advantages, batch.lengths, shape=loss.shape, correction=correction
        )
    assert loss.bound == "none", f"{loss.bound} is a function, which the learner is given"
    return unbounded_policy_loss(ratio, advantages)
