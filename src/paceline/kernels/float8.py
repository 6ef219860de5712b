"""Products in eight bits: every row and every output has a scale of its own, and sums are in float32.

    x[n, i] = s[n] q[n, i] and W[o, i] = t[o] p[o, i], q and p rounded to e4m3
    y[n, o] = s[n] t[o] (sum over i of q[n, i] p[o, i])

N rows, I inputs, O outputs. e4m3 has four bits of exponent and three of fraction: numbers up to 448, each within a
sixteenth of itself, and below 2^-6 to a multiple of 2^-9 (FP8 formats for deep learning, arXiv:2209.05433). Its numbers
are exact in bfloat16 and float32.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

FLOAT8 = torch.float8_e4m3fn
LARGEST = 448.0
LEAST_CAPABILITY = (8, 9)
"""Least compute capability that multiplies e4m3."""
ALIGNED = 16
"""Inputs and outputs of a product on CUDA are multiples of this."""


class Float8Linear(NamedTuple):
    """A linear layer in eight bits, or with the numbers of eight bits in the precision of the computation."""

    numbers: Shaped[Tensor, "O I"]
    scale: Float[Tensor, "1 O"]
    bias: Float[Tensor, " O"] | None


def quantized(rows: Float[Tensor, "N I"]) -> tuple[Shaped[Tensor, "N I"], Float[Tensor, "N 1"]]:
    """Return each row in e4m3 with its scale, by which its largest number is 448; zeros stay zeros."""
    wide = rows.float()
    scale = wide.abs().amax(1, keepdim=True) / LARGEST
    return (wide / torch.where(scale == 0, 1.0, scale)).to(FLOAT8), scale


def float8_product(
    rows: tuple[Shaped[Tensor, "N I"], Float[Tensor, "N 1"]], layer: Float8Linear, dtype: torch.dtype
) -> Float[Tensor, "N O"]:
    """Multiply rows in e4m3, with their scales, by a layer in e4m3, by the device's own instructions; gives `dtype`."""
    by_row = F.ScalingType.RowWise
    numbers, scale = rows
    result = F.scaled_mm(numbers, layer.numbers.T, scale, by_row, layer.scale, by_row, output_dtype=dtype)
    return result if layer.bias is None else result.add_(layer.bias)


def float8_problem(device: torch.device, dtype: torch.dtype, capability: tuple[int, int] | None = None) -> str | None:
    """Return why products in eight bits cannot stand in for those in `dtype` on this device.

    `capability`: compute capability of a CUDA device; None: the device is asked.
    """
    if device.type not in ("cpu", "cuda"):
        return f"it is for CUDA and CPUs, the model is on {device.type}"
    if dtype not in (torch.float32, torch.bfloat16):
        return f"it stands in for float32 or bfloat16, not {dtype}"
    if device.type == "cpu":
        return None
    if dtype == torch.float32:
        return "on CUDA its products give bfloat16, and the model computes in float32"
    capability = capability or torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        return f"it needs compute capability 8.9 or higher, the device has {capability[0]}.{capability[1]}"
    return None
