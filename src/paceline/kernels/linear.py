"""Matrix products on a CPU by the faster of the two libraries that torch ships with.

Torch gives float32 products to MKL, which leaves AVX-512 unused on processors that are not Intel's; there oneDNN is up
to twice as fast. On Intel's, MKL is as fast for large products and up to three times as fast for small ones. A new
shape costs oneDNN about a millisecond once, so small layers, whose products take less, stay with torch in training.

N rows, I inputs, O outputs.
"""

import functools
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

LARGE_WEIGHTS = 1 << 16
"""Elements of a weight from which on oneDNN is used."""
BFLOAT16_UNITS = ("amx_bf16", "avx512_bf16")
"""Flags of processors that multiply bfloat16 in hardware, in the words of torch and of Linux."""


@functools.cache
def prefers_onednn(dtype: torch.dtype) -> bool:
    """Return True if oneDNN is faster for a precision it supports: by the processor's make, never measured, for
    repeatable runs."""
    if dtype not in (torch.float32, torch.bfloat16) or not has_onednn():
        return False
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    is_intel = "intel" in str(_capabilities().get("cpu_name", "")).lower()
    return dtype == torch.bfloat16 or not (torch.backends.mkl.is_available() and is_intel)


@functools.cache
def has_fast_bfloat16() -> bool:
    """Return True if the processor multiplies bfloat16 in hardware, twice (AVX-512) to several times (AMX) as fast."""
    capabilities = _capabilities()
    return any(capabilities.get(units, False) for units in BFLOAT16_UNITS)


def _capabilities() -> dict[str, Any]:
    ask = getattr(torch.cpu, "get_capabilities", None)  # torch 2.11 cannot tell
    return {} if ask is None else dict(ask())


@functools.cache
def has_onednn() -> bool:
    """Return True if this build of torch has oneDNN's products."""
    built_in: bool = torch.backends.mkldnn.is_available()
    return built_in and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def onednn_serves(x: Tensor, weight: Tensor) -> bool:
    """Return True if this product goes to oneDNN: by shape, device and precision alone, so runs can be repeated."""
    is_plain = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    return is_plain and weight.numel() >= LARGE_WEIGHTS and prefers_onednn(torch.float32)


def product(x: Float[Tensor, "N I"], weight: Float[Tensor, "O I"]) -> Float[Tensor, "N O"]:
    """Return x @ weight.T, without a gradient."""
    if not onednn_serves(x, weight):
        return x @ weight.T
    return cast(Tensor, torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], ""))


def linear(
    x: Float[Tensor, "*rows I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None
) -> Float[Tensor, "*rows O"]:
    """Return x @ weight.T + bias, with gradients."""
    result = cast(Tensor, _Product.apply(x.reshape(-1, x.shape[-1]), weight))  # type: ignore[no-untyped-call]
    result = result.view(*x.shape[:-1], weight.shape[0])
    return result if bias is None else result + bias


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad = gradients[0]
        grad_x = product(grad, weight.T) if ctx.needs_input_grad[0] else None
        # rows are the inner dimension here, and both libraries are equally fast
        grad_weight = grad.T @ x if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight


class _CastProduct(torch.autograd.Function):
    """Product in the precision of `x` whose weight is cast again in the backward pass instead of being kept.

    torch's autocast keeps every cast weight until its gradient is known: half as much again as the weights themselves.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        ctx.bias_dtype = None if bias is None else bias.dtype
        return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = gradients[0]
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        grad_x = grad @ weight.to(grad.dtype) if needs_x else None
        grad_weight = weight_gradient(grad, x, weight.dtype) if needs_weight else None
        grad_bias = grad.sum(0).to(ctx.bias_dtype) if needs_bias else None
        return grad_x, grad_weight, grad_bias


def weight_gradient(grad: Float[Tensor, "N O"], x: Float[Tensor, "N I"], dtype: torch.dtype) -> Float[Tensor, "O I"]:
    """Return grad.T @ x in `dtype`. On CUDA a float32 result of half precision is never rounded to half."""
    if grad.is_cuda and dtype == torch.float32 != grad.dtype:
        return cast(Tensor, torch.ops.aten.mm.dtype(grad.T, x, torch.float32))
    return (grad.T @ x).to(dtype)


def cast_linear(
    x: Float[Tensor, "*rows I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None, dtype: torch.dtype
) -> Float[Tensor, "*rows O"]:
    """Return x @ weight.T + bias in `dtype`, as under autocast, with gradients in the precisions of the parameters."""
    flat = x.reshape(-1, x.shape[-1]).to(dtype)
    result = cast(Tensor, _CastProduct.apply(flat, weight, bias))  # type: ignore[no-untyped-call]
    return result.view(*x.shape[:-1], weight.shape[0])


def best_linear(
    x: Float[Tensor, "*rows I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None
) -> Float[Tensor, "*rows O"]:
    """Return x @ weight.T + bias with gradients, by the fastest or smallest of these; also under autocast."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        if torch.is_grad_enabled() and weight.dtype == torch.float32 != dtype:
            return cast_linear(x, weight, bias, dtype)
        return F.linear(x, weight, bias)
    if not onednn_serves(x, weight):
        return F.linear(x, weight, bias)
    return linear(x, weight, bias)


class ProductLinear(nn.Linear):
    """Linear layer with torch's parameters and names, faster or smaller on some CPUs."""

    def forward(self, input: Tensor) -> Tensor:
        """Return input @ weight.T + bias."""
        return best_linear(input, self.weight, self.bias)


def speed_up_linear_layers(model: nn.Module) -> None:
    """Replace the product of every plain linear layer of the model; layers of another class are left alone."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = ProductLinear
