"""KL divergence from a reference model: a penalty with the right gradient, and an estimate of its value."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from paceline.objective.policy_loss import LOG_RATIO_LIMIT


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

    The second is the estimator k3 (`kl_estimate`): unbiased as a value of the reverse KL, yet differentiated inside a
    loss it gives the forward KL's gradient. The first, k2, gives the reverse KL's. The ratio is held at e^80, as that
    of `policy_ratio`: the gradient of a token that is left out is 0 times it.
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
