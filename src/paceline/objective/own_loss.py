"""A policy loss that a user defines, and the check before training that it keeps law 1.

The function gets the tokens of a micro-batch and returns one loss for each. The step's token weights average them, so
the gradient does not depend on how a step is cut. A function that averages itself, or reads tokens of other sequences,
would break that: it is called on made-up sequences whole, cut and reordered, and refused if a token's loss changes.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from paceline.errors import ConfigError, first_line


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyTokens:
    """Inputs of a loss of the user's own: the N sampled tokens of a micro-batch, of S completions laid end to end."""

    ratio: Float[Tensor, " N"]
    """Probability under the policy over that under the old policy, of the token or of its sequence, with gradient."""
    logprobs: Float[Tensor, " N"]
    """Logprobs of the policy, in nats, with their gradient."""
    old_logprobs: Float[Tensor, " N"]
    """Logprobs of the policy at the start of the step."""
    rollout_logprobs: Float[Tensor, " N"]
    """Logprobs as the engine that sampled reported them."""
    advantages: Float[Tensor, " N"]
    """Advantage of each token's completion, or of its turn."""
    entropy: Float[Tensor, " N"]
    """Entropy of the policy's distribution at each token, in nats, with its gradient."""
    lengths: Int[Tensor, " S"]
    """Sampled tokens of each completion, over all turns of an episode; they sum to N."""


PolicyLoss = Callable[[PolicyTokens], Tensor]
"""Policy loss that a user defines: one loss for each of the N tokens, smaller is better, without any average."""

TRIAL_LENGTHS = (3, 1, 4, 2, 5, 3)
TRIAL_CUTS = (
    [[0, 1, 2], [3, 4, 5]],
    [[5], [0, 3], [4, 2, 1]],
    [[4, 0, 5, 1, 3, 2]],
    [[1]] + [[n] for n in (3, 0, 5, 2, 4)],
)
"""Sequences of each micro-batch, by cut: every cut has all six, some in another order."""
TOLERANCE = 1e-10
"""Largest relative difference, in float64."""


def check_policy_loss(function: PolicyLoss, name: str) -> None:
    """Check a loss against law 1 on random float64 sequences.

    Raises:
        ConfigError: the function raises, does not return one finite loss per token, has no gradient, or gives a token
            another loss or gradient where its sequence stands in another micro-batch.
    """
    with torch.device("cpu"):  # whatever the program's default is
        tokens = _random_tokens()
    whole, gradient = _losses(function, name, tokens)
    if not torch.equal(_losses(function, name, tokens)[0], whole):
        raise _refusal(name, "gives the same tokens two different losses", "leave out what is random or remembered")
    starts = [sum(TRIAL_LENGTHS[:i]) for i in range(len(TRIAL_LENGTHS))]
    scale = 1 + float(whole.abs().max())
    for cut in TRIAL_CUTS:
        for members in cut:
            positions = torch.cat([torch.arange(starts[i], starts[i] + TRIAL_LENGTHS[i]) for i in members])
            flat = {f.name: getattr(tokens, f.name)[positions] for f in fields(tokens) if f.name != "lengths"}
            chosen = PolicyTokens(**flat, lengths=tokens.lengths[members])
            part, part_gradient = _losses(function, name, chosen)
            differences = (part - whole[positions]).abs().max(), (part_gradient - gradient[:, positions]).abs().max()
            if float(max(differences)) > TOLERANCE * scale:
                raise _refusal(name, *_violation(whole[positions], part, len(members)))


def _random_tokens() -> PolicyTokens:
    """Make sequences whose ratios, advantages and entropies lie on both sides of the bounds of usual losses."""
    generator, count = torch.Generator().manual_seed(0), sum(TRIAL_LENGTHS)
    lengths = torch.tensor(TRIAL_LENGTHS)

    def normal(scale: float, size: int = count) -> Tensor:
        return scale * torch.randn(size, generator=generator, dtype=torch.float64)

    old = -2.0 + normal(0.5)
    logprobs = (old + normal(0.4)).clamp(max=-0.01)
    advantages = torch.cat([torch.zeros(1, dtype=torch.float64), normal(1.0, len(TRIAL_LENGTHS) - 1)])
    return PolicyTokens(
        ratio=torch.exp(logprobs - old),
        logprobs=logprobs,
        old_logprobs=old,
        rollout_logprobs=old + normal(0.2),
        advantages=advantages.repeat_interleave(lengths),
        entropy=1.5 + normal(0.5).abs(),
        lengths=lengths,
    )


def _losses(function: PolicyLoss, name: str, tokens: PolicyTokens) -> tuple[Tensor, Tensor]:
    """Return the loss of each token, and the gradient of their weighted sum by logprobs and by entropy, [2, N]."""
    logprobs, entropy = tokens.logprobs.clone().requires_grad_(), tokens.entropy.clone().requires_grad_()
    leaves = replace(tokens, logprobs=logprobs, entropy=entropy, ratio=torch.exp(logprobs - tokens.old_logprobs))
    try:
        losses = function(leaves)
    except Exception as error:
        raise _refusal(name, f"raises {type(error).__name__} ({first_line(error)})", "correct the function") from error
    if not isinstance(losses, Tensor) or losses.shape != logprobs.shape:
        shape = f"a tensor of shape {list(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        is_mean = isinstance(losses, Tensor) and losses.numel() == 1
        what = f"returns {shape} for {len(logprobs)} tokens" + (", so it averages or sums itself" if is_mean else "")
        raise _refusal(name, what, RETURN_EACH)
    if not bool(torch.isfinite(losses).all()):
        raise _refusal(name, "returns a loss that is not finite", "clamp what it exponentiates or divides by")
    if not losses.requires_grad:
        raise _refusal(name, "has no gradient", "compute it from logprobs, ratio or entropy without detaching them all")
    # each token has another weight, which depends on that token alone
    weights = 1 + tokens.rollout_logprobs.sin()
    parts = torch.autograd.grad((weights * losses).sum(), [logprobs, entropy], allow_unused=True)
    zero = torch.zeros_like(logprobs)
    return losses.detach(), torch.stack([zero if part is None else part for part in parts])


RETURN_EACH = "return one loss per token and average nothing: the step's token weights do that (--average)"


def _violation(whole: Tensor, part: Tensor, sequences: int) -> tuple[str, str]:
    """Describe the likely reason why a part's losses differ from those of the whole batch, and the remedy."""
    nonzero = whole.abs() > 1e-6
    quotients = part[nonzero] / whole[nonzero]
    for count, total, what in (
        (len(part), sum(TRIAL_LENGTHS), "tokens"),
        (sequences, len(TRIAL_LENGTHS), "sequences"),
    ):
        if nonzero.any() and float((quotients - total / count).abs().max()) < 1e-6 and count != total:
            return f"divides by the number of {what} of a micro-batch", RETURN_EACH
    return (
        f"changes a token's loss by up to {float((part - whole).abs().max()):.2g} where its sequence stands in another "
        "micro-batch or place, so it mixes sequences",
        "read other tokens of the same sequence only, by lengths, and average nothing",
    )


def _refusal(name: str, what: str, remedy: str) -> ConfigError:
    rule = "give each token the same loss however a step is cut into micro-batches"
    return ConfigError(f"--bound {name} must {rule}, and it {what}", remedies=[remedy])
