"""Operations around the matrix products of a decoder layer, with gradients, each in one pass over memory.

What a function computes again in the backward pass from what it keeps is not kept: the normed states, the gated
product, and the copies of weights in the precision of the computation. Without these a layer keeps, per token, two
normed sums, query, key, value and output of its attention, gate and up.

M tokens (rows) of a packed micro-batch, W width of the model, I of the gated layer, H query heads, K key/value heads,
D head width.
"""

import functools
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from paceline.kernels.cuda.triton_check import next_power, trial_problem, triton_problem, warps_of
from paceline.kernels.linear import weight_gradient

BLOCK = 1024
"""Columns of a gated layer's row that a program has at a time."""
ROWS = 16
"""Rows whose shares of a scale's gradient a program adds up, one after another."""
TILE = 1024
"""Elements of half heads that a program has at a time: eight for each thread, in one read of 16 bytes."""
PROBE_TOLERANCE = 2e-2
"""Largest difference from torch's operations that counts as rounding, relative to the largest number, in bfloat16."""


def add_rms_norm(
    x: Float[Tensor, "*rows W"],
    addend: Float[Tensor, "*rows W"] | None,
    scale: Float[Tensor, " W"],
    *,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Float[Tensor, "*rows W"], Float[Tensor, "*rows W"]]:
    """Return x + addend, and its norm (x + addend) / rms(x + addend) * scale; `eps` is added to the mean square.

    `x` and the sum are float32, `addend` and `scale` float32 or bfloat16, the normed states in `dtype`; everything is
    computed in float32. Without an addend the sum is `x` itself. Backward keeps (x + addend) / rms in `dtype`.
    """
    sum_and_norm = _NormedProducts.apply(x, addend, scale, eps, dtype)  # type: ignore[no-untyped-call]
    return cast(tuple[Tensor, Tensor], sum_and_norm)


def normed_products(
    x: Float[Tensor, "*rows W"],
    addend: Float[Tensor, "*rows W"] | None,
    scale: Float[Tensor, " W"],
    weights: Sequence[Float[Tensor, "_ W"]],
    biases: Sequence[Tensor | None],
    *,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Float[Tensor, "*rows W"], tuple[Tensor, ...]]:
    """Return x + addend and, of its norm (`add_rms_norm`), one product in `dtype` with each of the weights.

    They are computed as a single product, and lie side by side in memory. Either all have a bias or none.
    """
    total, *products = cast(
        tuple[Tensor, ...],
        _NormedProducts.apply(x, addend, scale, eps, dtype, *weights, *biases),  # type: ignore[no-untyped-call]
    )
    return total, tuple(products)


def gated_product(gate: Float[Tensor, "*rows I"], up: Float[Tensor, "*rows I"]) -> Float[Tensor, "*rows I"]:
    """Return silu(gate) * up, both float32 or both bfloat16, computed in float32. Backward keeps gate and up."""
    return cast(Tensor, _GatedProduct.apply(gate, up, None, None))  # type: ignore[no-untyped-call]


def product_of_gated(
    gate: Float[Tensor, "*rows I"], up: Float[Tensor, "*rows I"], weight: Float[Tensor, "W I"], bias: Tensor | None
) -> Float[Tensor, "*rows W"]:
    """Return (silu(gate) * up) @ weight.T + bias in the precision of gate and up, which are all that backward keeps."""
    return cast(Tensor, _GatedProduct.apply(gate, up, weight, bias))  # type: ignore[no-untyped-call]


def turned_heads(
    query: Float[Tensor, "M H D"],
    key: Float[Tensor, "M K D"],
    value: Float[Tensor, "M K D"],
    rotation: tuple[Float[Tensor, "M D"], Float[Tensor, "M D"]],
    norms: tuple[Float[Tensor, " D"], Float[Tensor, " D"], float] | None = None,
) -> tuple[Float[Tensor, "M H D"], Float[Tensor, "M K D"], Float[Tensor, "M K D"]]:
    """Return queries and keys turned by `rotation`, halves of a head paired (Llama's rotary embedding), and values.

    `rotation`: cosines and sines in float32. `norms`: scales and epsilon of the norms over each query and key head
    that come first, if any; backward keeps query and key for these, and nothing else.

    Values come along so that the gradients of all three lie side by side, as one product made the three.
    """
    scales = (None, None, 0.0) if norms is None else norms
    states = query, key.to(query.dtype), value.to(query.dtype)
    return cast(
        tuple[Tensor, Tensor, Tensor],
        _TurnedHeads.apply(*states, *rotation, *scales),  # type: ignore[no-untyped-call]
    )


class _NormedProducts(torch.autograd.Function):
    """Sum and norm, and the products of `parameters`: first all weights, then all biases; without any, the norm."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        addend: Tensor | None,
        scale: Tensor,
        eps: float,
        dtype: torch.dtype,
        *parameters: Tensor | None,
    ) -> tuple[Tensor, ...]:
        from paceline.kernels.cuda import triton_training

        ctx.set_materialize_grads(False)
        x = x.contiguous()
        addend = None if addend is None else addend.contiguous()
        rows, width = x.numel() // x.shape[-1], x.shape[-1]
        total = x if addend is None else torch.empty_like(x)
        unit, normed = (torch.empty_like(x, dtype=dtype) for _ in range(2))
        inverse = x.new_empty(rows)
        triton_training.add_rms_norm[(rows,)](
            *(x, x if addend is None else addend, scale, total, unit, normed, inverse, width, eps),
            HAS_ADDEND=addend is not None,
            BLOCK=next_power(width),
            num_warps=warps_of(width),
        )
        count = len(parameters) // 2
        weights, biases = cast(tuple[Tensor, ...], parameters[:count]), parameters[count:]
        ctx.save_for_backward(unit, scale, inverse, *weights)
        ctx.addend_dtype = None if addend is None else addend.dtype
        ctx.bias_dtypes = [None if bias is None else bias.dtype for bias in biases]
        if not weights:
            return total, normed
        bias = None if biases[0] is None else torch.cat([cast(Tensor, bias_part).to(dtype) for bias_part in biases])
        products = F.linear(normed, _joined(weights, dtype), bias)
        return total, *products.split([len(weight) for weight in weights], dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor | None, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        unit, scale, inverse, *weights = ctx.saved_tensors
        if all(gradient is None for gradient in gradients):
            by_addend = None if ctx.addend_dtype is None or grad_total is None else grad_total.to(ctx.addend_dtype)
            return grad_total, by_addend, None, None, None, *[None] * (2 * len(weights))
        of_parameters: list[Tensor | None] = []
        if not weights:
            grad_normed = cast(Tensor, gradients[0]).contiguous()
        else:
            sizes = [len(weight) for weight in weights]
            flat = unit.flatten(0, -2)
            pairs = zip(gradients, sizes, strict=True)
            grad = side_by_side([flat.new_zeros(len(flat), n) if g is None else g.flatten(0, -2) for g, n in pairs])
            needed = ctx.needs_input_grad[5:]
            of_parameters = [None] * len(needed)
            if any(needed[: len(weights)]):
                normed = torch.mul(flat, scale, out=torch.empty_like(flat))
                of_parameters[: len(weights)] = weight_gradient(grad, normed, weights[0].dtype).split(sizes)
                del normed
            if any(needed[len(weights) :]):
                sums = grad.sum(0, dtype=torch.float32).split(sizes)
                of_parameters[len(weights) :] = map(Tensor.to, sums, ctx.bias_dtypes)
            grad_normed = grad @ _joined(weights, unit.dtype)
            del grad
        grad_total = None if grad_total is None else grad_total.contiguous()
        of_norm = _norm_backward(unit, scale, inverse, grad_normed, grad_total, ctx.addend_dtype, ctx.needs_input_grad)
        return *of_norm, None, None, *of_parameters


def _norm_backward(
    unit: Tensor,
    scale: Tensor,
    inverse: Tensor,
    grad_normed: Tensor,
    grad_total: Tensor | None,
    addend_dtype: torch.dtype | None,
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of x, addend and scale."""
    from paceline.kernels.cuda import triton_training

    rows, width = len(inverse), unit.shape[-1]
    programs = -(-rows // ROWS)
    grad_x = torch.empty_like(unit, dtype=torch.float32)
    is_half = addend_dtype is not None and addend_dtype != torch.float32
    grad_addend = torch.empty_like(unit, dtype=addend_dtype) if is_half else grad_x
    parts = inverse.new_empty(programs, width) if needs[2] else inverse
    triton_training.add_rms_norm_backward[(programs,)](
        *(unit, scale, inverse, grad_normed, grad_x if grad_total is None else grad_total),
        *(grad_x, grad_addend, parts, rows, width),
        HAS_TOTAL=grad_total is not None,
        HAS_ADDEND=is_half,
        HAS_PARTS=needs[2],
        ROWS=ROWS,
        BLOCK=next_power(width),
        num_warps=warps_of(width),
    )
    by_scale = parts.sum(0).to(scale.dtype) if needs[2] else None
    return grad_x, None if addend_dtype is None else grad_addend, by_scale


class _GatedProduct(torch.autograd.Function):
    """The gated product or, with a weight, the product of it."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        from paceline.kernels.cuda import triton_kernels

        gates, ups = _rows(gate), _rows(up)
        rows, width = gates.shape
        product = gates.new_empty(rows, width)
        triton_kernels.silu_mul[(rows, -(-width // BLOCK))](
            gates, ups, product, width, gates.stride(0), ups.stride(0), BLOCK=BLOCK
        )
        ctx.save_for_backward(gates, ups, weight)
        ctx.shape, ctx.bias_dtype = gate.shape, None if bias is None else bias.dtype
        if weight is None:
            return product.view(gate.shape)
        product_rows = F.linear(product, weight.to(gate.dtype), None if bias is None else bias.to(gate.dtype))
        return product_rows.view(*gate.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from paceline.kernels.cuda import triton_training

        gates, ups, weight = ctx.saved_tensors
        grad = grad.contiguous().flatten(0, -2)
        by_product = grad if weight is None else grad @ weight.to(grad.dtype)
        rows, width = gates.shape
        grads = gates.new_empty(rows, 2 * width)
        grad_gate, grad_up = grads.split(width, dim=1)
        has_product = weight is not None and ctx.needs_input_grad[2]
        triton_training.gated_product_backward[(rows, -(-width // BLOCK))](
            *(gates, ups, by_product, grad_gate, grad_up, by_product),  # the product takes its gradient's place
            *(width, gates.stride(0), ups.stride(0), 2 * width),
            HAS_PRODUCT=has_product,
            BLOCK=BLOCK,
        )
        by_weight = weight_gradient(grad, by_product, weight.dtype) if has_product else None
        by_bias = grad.sum(0, dtype=torch.float32).to(ctx.bias_dtype) if ctx.needs_input_grad[3] else None
        return grad_gate.view(ctx.shape), grad_up.view(ctx.shape), by_weight, by_bias


class _TurnedHeads(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0913 - one kernel's tensors
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cosine: Tensor,
        sine: Tensor,
        query_scale: Tensor | None,
        key_scale: Tensor | None,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        from paceline.kernels.cuda import triton_training

        tokens, _, width = query.shape
        turned = []
        for states, scale in ((query, query_scale), (key, key_scale)):
            states = _heads(states)
            turned.append(torch.empty_like(states, memory_format=torch.contiguous_format))
            half, block = next_power(width // 2), max(1, TILE // next_power(width // 2))
            triton_training.turn_heads[(-(-tokens // block),)](
                *(states, cosine if scale is None else scale, cosine, sine, turned[-1]),
                *(tokens, states.stride(0), width, eps),
                HEADS=states.shape[1],
                HAS_NORM=scale is not None,
                TOKENS=block,
                HALF=half,
            )
        has_norm = query_scale is not None
        kept = (query, key, query_scale, key_scale) if has_norm else (None,) * 4
        ctx.save_for_backward(cosine, sine, *kept)
        ctx.eps = eps
        # a copy, or else the values would keep the memory of queries and keys, which a norm keeps anyway
        return turned[0], turned[1], value if has_norm else value.clone(memory_format=torch.contiguous_format)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from paceline.kernels.cuda import triton_training

        cosine, sine, query, key, *scales = ctx.saved_tensors
        tokens, _, width = gradients[0].shape
        counts = [gradient.shape[1] for gradient in gradients]
        grads = gradients[0].new_empty(tokens, sum(counts) * width)
        parts = [part.view(tokens, -1, width) for part in grads.split([count * width for count in counts], dim=1)]
        half, by_scale = next_power(width // 2), list[Tensor | None]()
        block = max(1, TILE // half)
        programs = -(-tokens // block)
        for grad, states, scale, part in zip(gradients, (query, key), scales, parts, strict=False):
            states = grads if scale is None else _heads(states)
            shares = cosine if scale is None else cosine.new_empty(programs, width)
            triton_training.turn_heads_backward[(programs,)](
                *(grad.contiguous(), states, cosine if scale is None else scale, cosine, sine, part, shares),
                *(tokens, states.stride(0), grads.stride(0), width, ctx.eps),
                HEADS=grad.shape[1],
                HAS_NORM=scale is not None,
                TOKENS=block,
                HALF=half,
            )
            by_scale.append(None if scale is None else shares.sum(0).to(scale.dtype))
        parts[2].copy_(gradients[2])
        return *parts, None, None, *by_scale, None


def side_by_side(parts: Sequence[Float[Tensor, "M _"]]) -> Float[Tensor, "M all"]:
    """Return matrices next to each other: without a copy, where they lie so in memory already."""
    first, width = parts[0], sum(part.shape[1] for part in parts)
    at, lies = first.storage_offset(), True
    for part in parts:
        is_same = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr() and part.dtype == first.dtype
        lies = lies and is_same and part.stride() == (width, 1) and part.storage_offset() == at
        at += part.shape[1]
    if not lies:
        return torch.cat(list(parts), dim=1)
    return first.as_strided((len(first), width), (width, 1), first.storage_offset())


def _joined(weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Return the weights below each other, cast on the way."""
    joined = weights[0].new_empty(sum(map(len, weights)), weights[0].shape[1], dtype=dtype)
    for rows, weight in zip(joined.split([len(weight) for weight in weights]), weights, strict=True):
        rows.copy_(weight)
    return joined


def _rows(states: Tensor) -> Tensor:
    """Return states as a matrix of which each row is compact; rows may lie apart."""
    flat = states.flatten(0, -2)
    return flat if flat.stride(1) == 1 else flat.contiguous()


def _heads(states: Tensor) -> Tensor:
    """Return heads of which those of a token lie side by side; tokens may lie apart."""
    return states if states.stride()[1:] == (states.shape[2], 1) else states.contiguous()


@functools.cache
def training_problem(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why the kernels do not serve here; if nothing speaks against them, all are tried on made-up numbers."""
    return triton_problem(device, dtype) or _tried(device, dtype)


def _tried(device: torch.device, dtype: torch.dtype) -> str | None:
    """Hold a norm, turned heads and a gated product in a row, and their gradients, to torch's operations."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cpu").to(device)

    x, scale, weight, down, outside = draw(5, 48), draw(48), draw(96, 48) / 7, draw(48, 32) / 6, draw(5, 48)
    angles = draw(5, 8).repeat(1, 2)
    rotation = angles.cos(), angles.sin()
    tensors = [x, scale, weight, down]

    def by_kernels(x: Tensor, scale: Tensor, weight: Tensor, down: Tensor) -> Tensor:
        heads, states = weight.split([64, 32]), None
        total, (states, value) = normed_products(x, x, scale, heads, (None, None), eps=1e-6, dtype=dtype)
        query, key = states.view(5, 2, 32).split(16, dim=2)
        query, key, value = turned_heads(query, key, value.view(5, 2, 16), rotation)
        return total + product_of_gated((query + key).flatten(1), value.flatten(1), down, None)

    def by_torch(x: Tensor, scale: Tensor, weight: Tensor, down: Tensor) -> Any:
        total = x + x
        states, value = (F.rms_norm(total, (48,), scale, 1e-6) @ weight.T).split([64, 32], dim=1)
        turned: list[Tensor] = [
            half * rotation[0][:, None] + torch.cat([-half[..., 8:], half[..., :8]], 2) * rotation[1][:, None]
            for half in states.view(5, 2, 32).split(16, dim=2)
        ]
        return total + (F.silu(turned[0] + turned[1]).flatten(1) * value) @ down.T

    def results(function: Any) -> list[Tensor]:
        inputs = [tensor.clone().requires_grad_() for tensor in tensors]
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            result = function(*inputs)
            return [result, *torch.autograd.grad((result * outside).sum(), inputs)]

    def difference(got: list[Tensor]) -> float:
        pairs = zip(got, results(by_torch), strict=True)
        return max(float((computed - expected).abs().max() / expected.abs().max()) for computed, expected in pairs)

    return trial_problem(lambda: results(by_kernels), difference, PROBE_TOLERANCE)
