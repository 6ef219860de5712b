"""Matrix products on a CPU by the faster of the two libraries that torch ships with.

torch gives float32 products to MKL, which leaves AVX-512 unused on processors that are not Intel's; there oneDNN is up
to twice as fast. On Intel's own MKL is as fast for large products and up to three times as fast for small ones. A new
shape costs oneDNN about a millisecond once, so in training small layers, whose products take less, stay with torch.

N rows, I inputs, O outputs.
"""

import functools
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

LARGE_WEIGHTS = 1 << 16
"""Elements of a weight from which on oneDNN is used."""


@functools.cache
def prefers_onednn(dtype: torch.dtype) -> bool:
    """Whether oneDNN is the faster one here, for a precision that it knows; by the processor's make, never measured,
    so that a run can be repeated."""
    if dtype not in (torch.float32, torch.bfloat16) or not has_onednn():
        return False
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    has_mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return dtype == torch.bfloat16 or not (has_mkl and is_intel())


@functools.cache
def is_intel() -> bool:
    """Whether the processor is Intel's, as far as torch can tell."""
    return "intel" in str(_capabilities().get("cpu_name", "")).lower()


@functools.cache
def has_fast_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 matrices in hardware (AMX): several times as fast as float32."""
    return bool(_capabilities().get("amx_bf16", False))


def _capabilities() -> dict[str, Any]:
    ask = getattr(torch.cpu, "get_capabilities", None)  # torch 2.11 cannot tell
    return {} if ask is None else dict(ask())


@functools.cache
def has_onednn() -> bool:
    """Whether this build of torch has oneDNN's products."""
    built_in: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return built_in and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def onednn_serves(x: Tensor, weight: Tensor) -> bool:
    """Whether this product goes to oneDNN: it depends on shape, device and precision alone, so runs can be repeated."""
    is_plain = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    return is_plain and weight.numel() >= LARGE_WEIGHTS and prefers_onednn(torch.float32)


def product(x: Float[Tensor, "N I"], weight: Float[Tensor, "O I"]) -> Float[Tensor, "N O"]:
    """x @ weight.T, without a gradient."""
    if not onednn_serves(x, weight):
        return x @ weight.T
    return cast(Tensor, torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], ""))


def linear(
    x: Float[Tensor, "*rows I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None
) -> Float[Tensor, "*rows O"]:
    """x @ weight.T + bias, with gradients."""
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


class ProductLinear(nn.Linear):
    """A linear layer like torch's, same parameters and names, faster on some CPUs."""

    def forward(self, input: Tensor) -> Tensor:
        """input @ weight.T + bias."""
        if torch.is_autocast_enabled(input.device.type) or not onednn_serves(input, self.weight):
            return super().forward(input)
        return linear(input, self.weight, self.bias)


def speed_up_linear_layers(model: nn.Module) -> None:
    """Let every plain linear layer of the model choose its product; layers of another class are left alone."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = ProductLinear
