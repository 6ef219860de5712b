"""Operations between the matrix products of a decoder layer, with gradients: norm of a sum, gated product.

M tokens of a packed micro-batch, H hidden width, I width of the feed-forward layer; both are multiples of 16.
"""

from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from paceline.kernels.cpu.compiling import kernel

CHUNK_ROWS = 64
"""Rows whose shares of a scale's gradient are added up by one thread, one after another."""


def add_rms_norm(
    x: Float[Tensor, "*rows H"],
    addend: Float[Tensor, "*rows H"] | None,
    scale: Float[Tensor, " H"],
    *,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Float[Tensor, "*rows H"], Float[Tensor, "*rows H"]]:
    """Return x + addend, and its norm (x + addend) / rms(x + addend) * scale; `eps` is added to the mean square.

    `x`, the sum and `scale` are float32, `addend` float32 or bfloat16, the normed states in `dtype`; everything is
    computed in float32. Without an addend the sum is `x` itself.
    """
    total, normed = cast(
        tuple[Tensor, Tensor],
        _AddNorm.apply(x, addend, scale, eps, dtype),  # type: ignore[no-untyped-call]
    )
    return total, normed


def gated_product(gate: Float[Tensor, "*rows I"], up: Float[Tensor, "*rows I"]) -> Float[Tensor, "*rows I"]:
    """Return silu(gate) * up, both float32 or both bfloat16, computed in float32. Backward keeps gate and up."""
    return cast(Tensor, _GatedProduct.apply(gate, up))  # type: ignore[no-untyped-call]


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, addend: Tensor | None, scale: Tensor, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        x = x.contiguous()
        addend = None if addend is None else addend.contiguous()
        width = x.shape[-1]
        rows = x.numel() // width
        total = x if addend is None else torch.empty_like(x)
        normed, inverse = torch.empty_like(x, dtype=dtype), x.new_empty(rows)
        added_dtype = torch.float32 if addend is None else addend.dtype
        kernel("add_rms_norm", "ppi pp pip iif")(
            x, addend, added_dtype, scale, total, normed, dtype, inverse, rows, width, eps
        )
        ctx.save_for_backward(total, scale, inverse)
        ctx.addend_dtype = None if addend is None else addend.dtype
        return total, normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor | None, grad_normed: Tensor | None) -> tuple[Tensor | None, ...]:
        total, scale, inverse = ctx.saved_tensors
        if grad_normed is None:
            addend = None if ctx.addend_dtype is None or grad_total is None else grad_total.to(ctx.addend_dtype)
            return grad_total, addend, None, None, None
        grad_normed = grad_normed.contiguous()
        grad_total = None if grad_total is None else grad_total.contiguous()
        width, rows = total.shape[-1], inverse.numel()
        grad_x = torch.empty_like(total)
        grad_addend = torch.empty_like(total, dtype=torch.bfloat16) if ctx.addend_dtype == torch.bfloat16 else None
        parts = total.new_empty(-(-rows // CHUNK_ROWS), width) if ctx.needs_input_grad[2] else None
        inputs = (total, scale, inverse, grad_normed, grad_normed.dtype, grad_total)
        kernel("add_rms_norm_backward", "pppp i ppppi ii")(*inputs, grad_x, grad_addend, parts, CHUNK_ROWS, rows, width)
        by_addend = None if ctx.addend_dtype is None else grad_x if grad_addend is None else grad_addend
        return grad_x, by_addend, None if parts is None else parts.sum(0), None, None


class _GatedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        product = torch.empty_like(gate)
        kernel("gated_product", "ppp ii")(gate, up, product, gate.dtype, gate.numel())
        ctx.save_for_backward(gate, up)
        return product

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        grad_gate, grad_up = torch.empty_like(gate), torch.empty_like(up)
        kernel("gated_product_backward", "ppppp ii")(
            gate, up, grad.contiguous(), grad_gate, grad_up, gate.dtype, gate.numel()
        )
        return grad_gate, grad_up
