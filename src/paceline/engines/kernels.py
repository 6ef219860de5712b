"""The three matrix products of a decoder layer, each with what follows it, by the fastest kernel at hand.

N rows. torch's float32 `linear` on x86 goes to MKL, which leaves AVX-512 unused on some processors; oneDNN, which
ships with torch too, is up to 2.3 times faster there, equal elsewhere, and joins the activation or the residual sum.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from paceline.products import has_onednn

Linear = tuple[Tensor, Tensor | None]
"""Weight [out, in] and bias [out] or None."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernels:
    """Matrix products over rows; each gives a new tensor."""

    linear: Callable[[Tensor, Linear], Tensor]
    """x @ weight.T + bias."""
    linear_add: Callable[[Tensor, Linear, Tensor], Tensor]
    """residual + linear(x)."""
    gated: Callable[[Tensor, Linear, Linear], Tensor]
    """silu(linear(x, gate)) * linear(x, up)."""


def choose_kernels(device: torch.device, dtype: torch.dtype) -> Kernels:
    """oneDNN on a CPU for the precisions that it knows, else torch's own kernels.

    The choice depends on device and precision alone, never on a measured time, so that a run can be repeated.
    """
    if device.type == "cpu" and dtype in (torch.float32, torch.bfloat16) and has_onednn():
        return Kernels(linear=_onednn_linear, linear_add=_onednn_linear_add, gated=_onednn_gated)
    return Kernels(linear=_torch_linear, linear_add=_torch_linear_add, gated=_torch_gated)


def _torch_linear(x: Float[Tensor, "N I"], layer: Linear) -> Float[Tensor, "N O"]:
    return F.linear(x, *layer)


def _torch_linear_add(x: Tensor, layer: Linear, residual: Tensor) -> Tensor:
    return F.linear(x, *layer).add_(residual)


def _torch_gated(x: Tensor, gate: Linear, up: Linear) -> Tensor:
    return F.silu(F.linear(x, *gate), inplace=True).mul_(F.linear(x, *up))


def _onednn_linear(x: Tensor, layer: Linear) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, *layer, "none", [], "")
    return result


def _onednn_linear_add(x: Tensor, layer: Linear, residual: Tensor) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, residual, *layer, "add")
    return result


def _onednn_gated(x: Tensor, gate: Linear, up: Linear) -> Tensor:
    activated = torch.ops.mkldnn._linear_pointwise(x, *gate, "swish", [], "")
    result: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, activated, *up, "mul")
    return result
