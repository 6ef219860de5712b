"""Kernels of `cuda.logits`. Triton is imported here, so this module is imported only where it is used.

One program has one row of V logits, in blocks. Everything is computed in float32, whatever the logits are stored in.
"""

import triton
import triton.language as tl


@triton.jit
def statistics(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    logits, targets, logprobs, entropies, normalisers, vocabulary, scale, BLOCK: tl.constexpr
):
    """Compute log p(target), log Z - sum p x, and log Z of scaled logits x, relative to the largest logit so far."""
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * vocabulary
    columns = tl.arange(0, BLOCK)
    # the first logit is as good a start as any, and finite where any is: -inf - (-inf) would be no number
    top = tl.load(start).to(tl.float32) * scale
    top = tl.where(top == -float("inf"), -3.0e38, top)
    total, weighted = top * 0.0, top * 0.0
    for first in range(0, vocabulary, BLOCK):
        here = first + columns < vocabulary
        x = tl.load(start + first + columns, mask=here, other=-float("inf")).to(tl.float32) * scale
        higher = tl.maximum(top, tl.max(x, 0))
        lower = top - higher
        shifted = x - higher
        exponentials = tl.exp(shifted)
        weighted = tl.exp(lower) * (weighted + lower * total) + tl.sum(
            tl.where(shifted == -float("inf"), 0.0, exponentials * shifted), 0
        )
        total = tl.exp(lower) * total + tl.sum(exponentials, 0)
        top = higher
    log_total = tl.log(total)
    chosen = tl.load(start + tl.load(targets + row)).to(tl.float32) * scale
    tl.store(logprobs + row, chosen - top - log_total)
    tl.store(entropies + row, log_total - weighted / total)
    tl.store(normalisers + row, top + log_total)


@triton.jit
def gradients(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    logits,
    targets,
    normalisers,
    entropies,
    by_logprob,
    by_entropy,
    vocabulary,
    scale,
    HAS_LOGPROB: tl.constexpr,
    HAS_ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Overwrite a block of a row with the gradient by the scaled logits.

    d logprob / d x = onehot(target) - p;  d entropy / d x = -p * (log p + entropy)
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = columns < vocabulary
    places = logits + row * vocabulary + columns
    log_p = tl.load(places, mask=here, other=0.0).to(tl.float32) * scale - tl.load(normalisers + row)
    p = tl.exp(log_p)
    factor = p * 0.0
    if HAS_ENTROPY:
        log_or_zero = tl.where(log_p == -float("inf"), 0.0, log_p)  # of a token that cannot be sampled p is 0
        factor += tl.load(by_entropy + row) * (log_or_zero + tl.load(entropies + row))
    if HAS_LOGPROB:
        factor += tl.load(by_logprob + row)
    gradient = -p * factor
    if HAS_LOGPROB:
        # before the only rounding: 1 - p of a near-certain token would drown in the rounding of p
        gradient += tl.where(columns == tl.load(targets + row), tl.load(by_logprob + row), 0.0)
    tl.store(places, gradient.to(logits.dtype.element_ty), mask=here)
