"""Loss maths of group-relative policy optimisation: tensors in, tensors out.

N completion tokens of a micro-batch laid end to end (no padding), H hidden width, V vocabulary. Log-probabilities are
in nats. Every function is per token; how tokens are averaged is in the weights that `batching` makes for the whole
step, so a loss is always `(weights * token_losses).sum()` and its gradient does not depend on how a step is cut.
"""

from typing import Any, Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from paceline.products import product

CHUNK_ELEMENTS = {"cpu": 1 << 21, "cuda": 1 << 24}
"""Logits held at once by `token_logprobs`: what a CPU's cache keeps between two passes, what keeps a GPU busy."""


def clipped_policy_loss(
    logprobs: Float[Tensor, " N"],
    old_logprobs: Float[Tensor, " N"],
    advantages: Float[Tensor, " N"],
    *,
    clip_eps_low: float,
    clip_eps_high: float,
) -> Float[Tensor, " N"]:
    """Per-token clipped surrogate, negated: smaller is better.

        ratio = exp(logprobs - old_logprobs)
        loss  = -min(ratio * A, clip(ratio, 1 - clip_eps_low, 1 + clip_eps_high) * A)

    Source: DAPO, arXiv:2503.14476, Eq. 8. Equal bounds give GRPO, arXiv:2402.03300, Eq. 3, without its KL term.

    >>> zero = torch.zeros(1)
    >>> clipped_policy_loss(zero, zero, torch.tensor([2.0]), clip_eps_low=0.2, clip_eps_high=0.2)
    tensor([-2.])
    """
    ratio = torch.exp(logprobs - old_logprobs)
    clipped_ratio = ratio.clamp(1 - clip_eps_low, 1 + clip_eps_high)
    return -torch.minimum(ratio * advantages, clipped_ratio * advantages)


def kl_penalty(
    logprobs: Float[Tensor, " N"],
    old_logprobs: Float[Tensor, " N"],
    ref_logprobs: Float[Tensor, " N"],
    *,
    kl: Literal["reverse", "forward"],
) -> Float[Tensor, " N"]:
    """Per-token penalty whose expected gradient over tokens drawn from `old_logprobs` is the gradient of the named KL.

        delta = logprobs - ref_logprobs;  ratio = stop_gradient(exp(logprobs - old_logprobs))
        reverse, KL(policy || reference):  ratio * delta^2 / 2
        forward, KL(reference || policy):  ratio * (exp(-delta) - 1 + delta)

    The second is the estimator k3 of GRPO (arXiv:2402.03300, Eq. 4): unbiased as a value of the reverse KL, yet
    differentiated inside a loss it gives the forward KL's gradient. The first, k2, gives the reverse KL's.
    """
    delta = logprobs - ref_logprobs
    ratio = torch.exp(logprobs - old_logprobs).detach()
    estimate = delta.square() / 2 if kl == "reverse" else torch.exp(-delta) - 1 + delta
    return ratio * estimate


def kl_estimate(logprobs: Float[Tensor, " N"], ref_logprobs: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Never negative, unbiased value of KL(policy || reference) per token (k3), for reports only."""
    delta = (logprobs - ref_logprobs).detach()
    return torch.exp(-delta) - 1 + delta


def token_logprobs(
    hidden: Float[Tensor, "N H"],
    head: Float[Tensor, "V H"],
    targets: Int[Tensor, " N"],
    *,
    temperature: float,
    chunk_elements: int | None = None,
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Log-probability of each target and entropy of its distribution, softmax(hidden @ head.T / temperature).

    Logits exist in float32 (float64 for float64 input), `chunk_elements` at a time (None: by device), and are computed
    again in the backward pass, so memory does not grow with N * V. Entropy carries no gradient.

    Raises:
        ValueError: `temperature` is not positive.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    rows = max(1, (chunk_elements or CHUNK_ELEMENTS[hidden.device.type]) // head.shape[0])
    logprobs, entropy = cast(
        tuple[Tensor, Tensor],
        _TokenLogprobs.apply(hidden, head, targets, temperature, rows),  # type: ignore[no-untyped-call]
    )
    return logprobs, entropy


def _scaled_logits(hidden: Tensor, head: Tensor, temperature: float) -> Tensor:
    """Logits of the sampled distribution; at least float32, because bfloat16 logits cost 0.01 nats per token."""
    logits = product(hidden, head.to(hidden.dtype))
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    return logits if temperature == 1 else logits / temperature


class _TokenLogprobs(torch.autograd.Function):
    """Chunked forward that keeps only the normalisers, and a backward that computes each chunk's softmax again."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float, rows: int
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies, normalisers = [], [], []
        for chunk, target in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True):
            logits = _scaled_logits(chunk, head, temperature)
            normaliser = logits.logsumexp(dim=-1)
            logprobs.append(logits.gather(1, target[:, None])[:, 0] - normaliser)
            # H = log Z - sum p * logit, in place and as a product: two passes less than from log-probabilities
            probabilities = torch.exp_(logits - normaliser[:, None])
            entropies.append(normaliser - torch.bmm(probabilities[:, None], logits[:, :, None])[:, 0, 0])
            normalisers.append(normaliser)
        ctx.save_for_backward(hidden, head, targets, torch.cat(normalisers))
        ctx.temperature, ctx.rows = temperature, rows
        entropy = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy)
        return torch.cat(logprobs), entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, head, targets, normalisers = ctx.saved_tensors
        grad_logprobs = gradients[0]
        grad_hidden = torch.empty_like(hidden)
        grad_head = torch.zeros_like(head) if ctx.needs_input_grad[1] else None
        for start in range(0, len(hidden), ctx.rows):
            part = slice(start, start + ctx.rows)
            logits = _scaled_logits(hidden[part], head, ctx.temperature)
            # d logprob / d logits = onehot(target) - softmax
            scale = -grad_logprobs[part, None] / ctx.temperature
            grad_logits = logits.sub_(normalisers[part, None]).exp_().mul_(scale)
            grad_logits.scatter_add_(1, targets[part, None], -scale)
            grad_logits = grad_logits.to(hidden.dtype)
            grad_hidden[part] = product(grad_logits, head.to(hidden.dtype).T)
            if grad_head is not None:
                grad_head += (grad_logits.T @ hidden[part]).to(head.dtype)
        return grad_hidden, grad_head, None, None, None
