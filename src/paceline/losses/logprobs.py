"""Logprobs of sampled tokens, and the entropy of their distributions, from hidden states in chunks.

N completion tokens of a micro-batch laid end to end (no padding), H hidden width, V vocabulary.
"""

from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from paceline.products import product

CHUNK_ELEMENTS = {"cpu": 1 << 21, "cuda": 1 << 24}
"""Logits held at once by `token_logprobs`: what a CPU's cache keeps between two passes, what keeps a GPU busy."""


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
    again in the backward pass, so memory does not grow with N * V.

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
    """Chunked forward that keeps only normalisers and entropies; the backward computes each chunk's softmax again."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float, rows: int
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)  # an entropy that nothing is asked of must cost nothing
        logprobs, entropies, normalisers = [], [], []
        for chunk, target in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True):
            logits = _scaled_logits(chunk, head, temperature)
            normaliser = logits.logsumexp(dim=-1)
            logprobs.append(logits.gather(1, target[:, None])[:, 0] - normaliser)
            # H = log Z - sum p * logit, in place and as a product: two passes less than from log-probabilities
            probabilities = torch.exp_(logits - normaliser[:, None])
            entropies.append(normaliser - torch.bmm(probabilities[:, None], logits[:, :, None])[:, 0, 0])
            normalisers.append(normaliser)
        entropy = torch.cat(entropies)
        ctx.save_for_backward(hidden, head, targets, torch.cat(normalisers), entropy)
        ctx.temperature, ctx.rows = temperature, rows
        return torch.cat(logprobs), entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, head, targets, normalisers, entropy = ctx.saved_tensors
        # by the scaled logits below, so divided here: once per token, not once per logit
        grad_logprobs, grad_entropy = (None if one is None else one / ctx.temperature for one in gradients)
        grad_hidden = torch.empty_like(hidden)
        grad_head = torch.zeros_like(head) if ctx.needs_input_grad[1] else None
        for start in range(0, len(hidden), ctx.rows):
            part = slice(start, start + ctx.rows)
            log_softmax = _scaled_logits(hidden[part], head, ctx.temperature).sub_(normalisers[part, None])
            grad_logits = _grad_logits(
                log_softmax,
                targets[part],
                entropy[part],
                None if grad_logprobs is None else grad_logprobs[part],
                None if grad_entropy is None else grad_entropy[part],
            ).to(hidden.dtype)
            grad_hidden[part] = product(grad_logits, head.to(hidden.dtype).T)
            if grad_head is not None:
                grad_head += (grad_logits.T @ hidden[part]).to(head.dtype)
        return grad_hidden, grad_head, None, None, None


def _grad_logits(
    log_softmax: Tensor, targets: Tensor, entropy: Tensor, grad_logprobs: Tensor | None, grad_entropy: Tensor | None
) -> Tensor:
    """Gradient by the scaled logits; `log_softmax` [rows, V] is used up.

    d logprob / d logits = onehot(target) - p;  d entropy / d logits = -p * (log p + entropy)
    """
    if grad_entropy is None and grad_logprobs is not None:
        grad_logits = log_softmax.exp_().mul_(-grad_logprobs[:, None])
    else:
        by_entropy = torch.zeros_like(entropy) if grad_entropy is None else grad_entropy
        by_logprob = torch.zeros_like(entropy) if grad_logprobs is None else grad_logprobs
        inner = by_logprob[:, None] + by_entropy[:, None] * (log_softmax + entropy[:, None])
        grad_logits = inner.mul_(log_softmax.exp_()).neg_()
    if grad_logprobs is not None:
        grad_logits.scatter_add_(1, targets[:, None], grad_logprobs[:, None])
    return grad_logits
