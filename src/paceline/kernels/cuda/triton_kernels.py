"""Kernels of `cuda.decoding` and `cuda.logits`, of which training takes the gated product too. Triton is imported here,
so this module is imported only where needed.

Sums and products are in float32, whatever the tensors are stored in. Of a decoding step there are N rows, and a BLOCK
is the next power of two of a width, or covers a part of it; of logits a program has one row of V, in blocks.
"""

import triton
import triton.language as tl


@triton.jit
def add_norm(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    residual, update, scale, normed, width, eps, HAS_UPDATE: tl.constexpr, BLOCK: tl.constexpr
):
    """Compute residual += update and normed = residual / rms(residual) * scale. A program has a row."""
    row = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    here = columns < width
    x = tl.load(residual + row + columns, mask=here, other=0.0)
    if HAS_UPDATE:
        total = x.to(tl.float32) + tl.load(update + row + columns, mask=here, other=0.0).to(tl.float32)
        x = total.to(residual.dtype.element_ty)  # the norm is of the rounded sum
        tl.store(residual + row + columns, x, mask=here)
    wide = x.to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / width + eps)
    weighted = wide * factor * tl.load(scale + columns, mask=here, other=0.0).to(tl.float32)
    tl.store(normed + row + columns, weighted.to(normed.dtype.element_ty), mask=here)


@triton.jit
def silu_mul(  # type: ignore[no-untyped-def]
    gate, up, out, width, gate_stride, up_stride, BLOCK: tl.constexpr
):
    """Compute silu(gate) * up of rows that lie some stride apart. A program has a block of a row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = columns < width
    x = tl.load(gate + row * gate_stride + columns, mask=here, other=0.0).to(tl.float32)
    y = tl.load(up + row * up_stride + columns, mask=here, other=0.0).to(tl.float32)
    product = x / (1.0 + tl.exp(-x)) * y
    tl.store(out + row * width + columns, product.to(out.dtype.element_ty), mask=here)


@triton.jit
def quantize_rows(  # type: ignore[no-untyped-def]
    x, numbers, scales, width, BLOCK: tl.constexpr
):
    """Write a row in e4m3, divided by its scale, by which the largest number is 448. A program has a row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    here = columns < width
    wide = tl.load(x + row * width + columns, mask=here, other=0.0).to(tl.float32)
    scale = tl.max(tl.abs(wide), 0) / 448.0
    tl.store(scales + row, scale)
    rounded = (wide / tl.where(scale == 0.0, 1.0, scale)).to(numbers.dtype.element_ty)
    tl.store(numbers + row * width + columns, rounded, mask=here)


@triton.jit
def rotate_and_store(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    qkv,
    norm,
    cosine,
    sine,
    positions,
    places,
    query_places,
    query,
    ordered_query,
    keys,
    values,
    query_heads,
    kv_heads,
    width,
    eps,
    HAS_NORM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program has a head of a row's new token: query heads go to the row's place and to their place by prompt, key
    and value heads into the cache; queries and keys are normed, where the model does, and turned.

        turned = x * cosine + roll(x, width / 2) * sine
    """
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heads = query_heads + 2 * kv_heads
    columns = tl.arange(0, BLOCK)
    here = columns < width
    opposite = (columns + width // 2) % width
    start = qkv + (row * heads + head) * width
    x = tl.load(start + columns, mask=here, other=0.0)
    if head >= query_heads + kv_heads:
        slot = tl.load(places + row) * kv_heads + head - query_heads - kv_heads
        tl.store(values + slot * width + columns, x, mask=here)
    else:
        y = tl.load(start + opposite, mask=here, other=0.0).to(tl.float32)
        wide = x.to(tl.float32)
        if HAS_NORM:
            factor = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / width + eps)
            wide = wide * factor * tl.load(norm + head * width + columns, mask=here, other=0.0).to(tl.float32)
            y = y * factor * tl.load(norm + head * width + opposite, mask=here, other=0.0).to(tl.float32)
        angle = tl.load(positions + row) * width
        by_cosine = wide * tl.load(cosine + angle + columns, mask=here, other=0.0).to(tl.float32)
        turned = by_cosine + y * tl.load(sine + angle + columns, mask=here, other=0.0).to(tl.float32)
        turned = turned.to(qkv.dtype.element_ty)
        if head < query_heads:
            tl.store(query + (row * query_heads + head) * width + columns, turned, mask=here)
            ordered = tl.load(query_places + row) * query_heads + head
            tl.store(ordered_query + ordered * width + columns, turned, mask=here)
        else:
            slot = tl.load(places + row) * kv_heads + head - query_heads
            tl.store(keys + slot * width + columns, turned, mask=here)


@triton.jit
def merge(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    row_output, own_normaliser, prompt, prompt_normaliser, place_of, out, rows, heads, width, BLOCK: tl.constexpr
):
    """Merge attention over own tokens [N, H, D] with that over the prompt's, whose rows are at `place_of`.

    Normalisers [H, N] are logsumexps; the first part's share is sigmoid(own - prompt). A program has a head of a row.
    """
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    here = columns < width
    by_slot = tl.load(place_of + row)
    difference = tl.load(own_normaliser + head * rows + row) - tl.load(prompt_normaliser + head * rows + by_slot)
    share = 1.0 / (1.0 + tl.exp(-difference))
    at = (row * heads + head) * width + columns
    row_value = tl.load(row_output + at, mask=here, other=0.0).to(tl.float32)
    prompt_value = tl.load(prompt + (by_slot * heads + head) * width + columns, mask=here, other=0.0).to(tl.float32)
    tl.store(out + at, (prompt_value + share * (row_value - prompt_value)).to(out.dtype.element_ty), mask=here)


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
