"""Kernels of `cuda.training`. Triton is imported here, so this module is imported only where needed.

Sums and products are in float32, whatever the tensors are stored in. No program adds to what another one has written:
sums over rows are partial sums of a fixed number of rows, so that the same numbers give the same bits.
"""

import triton
import triton.language as tl


@triton.jit
def add_rms_norm(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    x, addend, scale, total, unit, normed, inverse, width, eps, HAS_ADDEND: tl.constexpr, BLOCK: tl.constexpr
):
    """Compute total = x + addend, inverse = 1 / rms(total), unit = total * inverse and normed = unit * scale.

    A program has a row; without an addend the total is `x`, and is not written.
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    here = columns < width
    places = row * width + columns
    wide = tl.load(x + places, mask=here, other=0.0).to(tl.float32)
    if HAS_ADDEND:
        wide += tl.load(addend + places, mask=here, other=0.0).to(tl.float32)
        tl.store(total + places, wide, mask=here)
    factor = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / width + eps)
    wide *= factor
    tl.store(unit + places, wide.to(unit.dtype.element_ty), mask=here)
    weighted = wide * tl.load(scale + columns, mask=here, other=0.0).to(tl.float32)
    tl.store(normed + places, weighted.to(normed.dtype.element_ty), mask=here)
    tl.store(inverse + row, factor)


@triton.jit
def add_rms_norm_backward(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    unit,
    scale,
    inverse,
    grad_normed,
    grad_total,
    grad_x,
    grad_addend,
    parts,
    rows,
    width,
    HAS_TOTAL: tl.constexpr,
    HAS_ADDEND: tl.constexpr,
    HAS_PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the gradient by the sum, once more in the addend's precision, and a share of the scale's.

        d scale = sum over rows of d normed * unit
        d x     = inverse * (d normed * scale - unit * mean(d normed * scale * unit)) + d total

    A program has ROWS rows, one after another.
    """
    columns = tl.arange(0, BLOCK)
    here = columns < width
    weight = tl.load(scale + columns, mask=here, other=0.0).to(tl.float32)
    share = tl.zeros((BLOCK,), tl.float32)
    first = tl.program_id(0).to(tl.int64) * ROWS
    for number in range(0, tl.minimum(rows - first, ROWS)):
        row = first + number
        places = row * width + columns
        x = tl.load(unit + places, mask=here, other=0.0).to(tl.float32)
        grad = tl.load(grad_normed + places, mask=here, other=0.0).to(tl.float32)
        share += grad * x
        grad *= weight
        mean = tl.sum(grad * x, 0) / width
        grad = (grad - x * mean) * tl.load(inverse + row)
        if HAS_TOTAL:
            grad += tl.load(grad_total + places, mask=here, other=0.0)
        tl.store(grad_x + places, grad, mask=here)
        if HAS_ADDEND:
            tl.store(grad_addend + places, grad.to(grad_addend.dtype.element_ty), mask=here)
    if HAS_PARTS:
        tl.store(parts + tl.program_id(0) * width + columns, share, mask=here)


@triton.jit
def gated_product_backward(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    gate,
    up,
    grad,
    grad_gate,
    grad_up,
    product,
    width,
    gate_stride,
    up_stride,
    grad_stride,
    HAS_PRODUCT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the gradients by gate and up, whose rows lie `grad_stride` apart, and silu(gate) * up again.

    d silu(x) / d x = s (1 + x (1 - s)), s = sigmoid(x). A program has a block of a row. The product may be written
    over its gradient, as each place is read before it is written.
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = columns < width
    x = tl.load(gate + row * gate_stride + columns, mask=here, other=0.0).to(tl.float32)
    y = tl.load(up + row * up_stride + columns, mask=here, other=0.0).to(tl.float32)
    outer = tl.load(grad + row * width + columns, mask=here, other=0.0).to(tl.float32)
    share = 1.0 / (1.0 + tl.exp(-x))
    opened = x * share
    by_gate = outer * y * share * (1.0 + x * (1.0 - share))
    tl.store(grad_gate + row * grad_stride + columns, by_gate.to(grad_gate.dtype.element_ty), mask=here)
    tl.store(grad_up + row * grad_stride + columns, (outer * opened).to(grad_up.dtype.element_ty), mask=here)
    if HAS_PRODUCT:
        tl.store(product + row * width + columns, (opened * y).to(product.dtype.element_ty), mask=here)


@triton.jit
def halves(  # type: ignore[no-untyped-def]
    places, half, here
):
    """Return what lies at some places and what lies `half` behind them, in float32."""
    first = tl.load(places, mask=here, other=0.0).to(tl.float32)
    return first, tl.load(places + half, mask=here, other=0.0).to(tl.float32)


@triton.jit
def turn_heads(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    states,
    scale,
    cosine,
    sine,
    turned,
    tokens,
    stride,
    width,
    eps,
    HEADS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    TOKENS: tl.constexpr,
    HALF: tl.constexpr,
):
    """Norm the heads of some tokens, where the model does, and turn them by their positions.

        first half = first * cosine - second * sine;  second half = second * cosine + first * sine

    The heads of a token lie side by side, tokens `stride` apart; turned heads are compact. Tables are [tokens, width].
    A program has TOKENS tokens, whose angles it reads once for all of their heads.
    """
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)[:, None]
    columns = tl.arange(0, HALF)[None, :]
    half = width // 2
    inside = columns < half
    here = (token < tokens) & inside
    angles = token * width + columns
    cosine_1, cosine_2 = halves(cosine + angles, half, here)
    sine_1, sine_2 = halves(sine + angles, half, here)
    for head in range(HEADS):
        source = states + token * stride + head * width + columns
        first, second = halves(source, half, here)
        if HAS_NORM:
            squares = tl.sum(first * first + second * second, 1)[:, None]
            factor = 1.0 / tl.sqrt(squares / width + eps)
            scale_1, scale_2 = halves(scale + columns, half, inside)
            first *= factor * scale_1
            second *= factor * scale_2
        target = turned + (token * HEADS + head) * width + columns
        tl.store(target, (first * cosine_1 - second * sine_1).to(turned.dtype.element_ty), mask=here)
        tl.store(target + half, (second * cosine_2 + first * sine_2).to(turned.dtype.element_ty), mask=here)


@triton.jit
def turn_heads_backward(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    grad_turned,
    states,
    scale,
    cosine,
    sine,
    grad,
    parts,
    tokens,
    stride,
    grad_stride,
    width,
    eps,
    HEADS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    TOKENS: tl.constexpr,
    HALF: tl.constexpr,
):
    """Turn the gradients of compact heads back, and take them through the norm with a share of its scale's gradient.

    Without a norm `states` are not read. Gradients of a token lie side by side, tokens `grad_stride` apart.
    """
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)[:, None]
    columns = tl.arange(0, HALF)[None, :]
    half = width // 2
    inside = columns < half
    here = (token < tokens) & inside
    angles = token * width + columns
    cosine_1, cosine_2 = halves(cosine + angles, half, here)
    sine_1, sine_2 = halves(sine + angles, half, here)
    share_1 = tl.zeros((TOKENS, HALF), tl.float32)
    share_2 = tl.zeros((TOKENS, HALF), tl.float32)
    for head in range(HEADS):
        outer = grad_turned + (token * HEADS + head) * width + columns
        outer_1, outer_2 = halves(outer, half, here)
        first = outer_1 * cosine_1 + outer_2 * sine_2
        second = outer_2 * cosine_2 - outer_1 * sine_1
        if HAS_NORM:
            source = states + token * stride + head * width + columns
            unit_1, unit_2 = halves(source, half, here)
            squares = tl.sum(unit_1 * unit_1 + unit_2 * unit_2, 1)[:, None]
            factor = 1.0 / tl.sqrt(squares / width + eps)
            unit_1 *= factor
            unit_2 *= factor
            share_1 += first * unit_1
            share_2 += second * unit_2
            scale_1, scale_2 = halves(scale + columns, half, inside)
            first *= scale_1
            second *= scale_2
            mean = tl.sum(first * unit_1 + second * unit_2, 1)[:, None] / width
            first = (first - unit_1 * mean) * factor
            second = (second - unit_2 * mean) * factor
        target = grad + token * grad_stride + head * width + columns
        tl.store(target, first.to(grad.dtype.element_ty), mask=here)
        tl.store(target + half, second.to(grad.dtype.element_ty), mask=here)
    if HAS_NORM:
        part = parts + tl.program_id(0) * width + tl.arange(0, HALF)
        tl.store(part, tl.sum(share_1, 0), mask=tl.arange(0, HALF) < half)
        tl.store(part + half, tl.sum(share_2, 0), mask=tl.arange(0, HALF) < half)
