"""What a decoder layer computes besides attention, by the fastest code at hand: its products, and what lies between.

N rows. Products go to one of torch's libraries; norms, residual sums and the gated activation to compiled kernels where
this machine has them, else to torch. The choice is by device, precision, shape and the presence of a compiler, never by
a measured time, so that a run can be repeated.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

from paceline.kernels.cpu.compiling import STORAGE, library
from paceline.kernels.cpu.decoding import CpuDecodingKernels
from paceline.kernels.cuda.decoding import CudaDecodingKernels, kernels_problem
from paceline.kernels.cuda.decoding import decoding_kernels as cuda_kernels
from paceline.kernels.cuda.drawing import drawing_problem
from paceline.kernels.float8 import Float8Linear, float8_product, quantized
from paceline.kernels.linear import prefers_onednn

Linear = tuple[Tensor, Tensor | None]
"""Weight [out, in], which oneDNN may have packed, and bias [out] or None."""
PACKED_WEIGHTS = 1 << 16
"""Elements of a bfloat16 weight from which on oneDNN packs it once per call: 15 to 35 % of a product of 32 to 128
rows goes into doing it each time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernels:
    """The operations of one decoder, with their precisions."""

    dtype: torch.dtype
    """Precision of products' inputs and outputs."""
    native: CpuDecodingKernels | None
    """Compiled kernels of a CPU for all but the products; None: torch's operations."""
    cuda: CudaDecodingKernels | None
    """Compiled kernels of a CUDA device; None: torch's operations."""
    onednn: bool
    """Products go to oneDNN; else to whatever torch's `linear` takes."""
    float8: bool = False
    """Layers are multiplied in eight bits. A CPU computes with the same numbers in `dtype`, and saves nothing by it."""

    @property
    def residual_dtype(self) -> torch.dtype:
        """Precision of the residual stream. The compiled kernels keep it in float32, as training does."""
        return self.dtype if self.native is None else torch.float32

    @property
    def packs(self) -> bool:
        """True if large weights are copied into oneDNN's own layout."""
        return self.onednn and self.dtype == torch.bfloat16

    def projection(self, layer: Linear) -> Linear | Float8Linear:
        """Prepare a projection for `linear`, in eight bits if `float8`."""
        if not self.float8:
            return self.prepared(layer)
        weight, bias = layer
        numbers, scale = self._quantized(weight)
        if weight.is_cpu:
            numbers, _ = self.prepared((numbers.to(self.dtype), None))
        return Float8Linear(numbers, scale.T.contiguous(), bias)

    def prepared(self, layer: Linear) -> Linear:
        """Prepare a layer for `linear`, in oneDNN's layout if that is faster."""
        weight, bias = layer
        if not self.packs or weight.numel() < PACKED_WEIGHTS:
            return layer
        return torch.ops.mkldnn._reorder_linear_weight(weight), bias

    def linear(self, x: Float[Tensor, "N I"], layer: Linear | Float8Linear) -> Float[Tensor, "N O"]:
        """Return x @ weight.T + bias."""
        if isinstance(layer, Float8Linear):
            numbers, scale = self._quantized(x)
            if x.is_cuda:
                return float8_product((numbers, scale), layer, self.dtype)
            sums = self.linear(numbers.to(self.dtype), (layer.numbers, None)).float() * scale * layer.scale
            return (sums if layer.bias is None else sums + layer.bias).to(self.dtype)
        if not self.onednn:
            return F.linear(x, *layer)
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, *layer, "none", [], "")
        return result

    def _quantized(self, rows: Float[Tensor, "N I"]) -> tuple[Shaped[Tensor, "N I"], Float[Tensor, "N 1"]]:
        return quantized(rows) if self.cuda is None else self.cuda.quantized(rows)

    def add_norm(
        self, residual: Float[Tensor, "N W"], update: Tensor | None, scale: Float[Tensor, " W"], eps: float
    ) -> Float[Tensor, "N W"]:
        """Add `update` to `residual` in place; return residual / rms(residual) * scale."""
        if self.native is not None:
            return self.native.add_norm(residual, update, scale, eps, self.dtype)
        if self.cuda is not None:
            return self.cuda.add_norm(residual, update, scale, eps)
        return rms_norm(residual if update is None else residual.add_(update), scale, eps)

    def normed(self, x: Float[Tensor, "N W"], scale: Float[Tensor, " W"], eps: float) -> Float[Tensor, "N W"]:
        """Return x / rms(x) * scale in the products' precision."""
        if self.native is not None:
            return self.native.add_norm(x.float(), None, scale, eps, self.dtype)
        return rms_norm(x, scale, eps)

    def gated(
        self, x: Float[Tensor, "N I"], *layers: Linear | Float8Linear, gelu: bool = False
    ) -> Float[Tensor, "N O"]:
        """Return silu(gate(x)) * up(x), for two layers or for one with both concatenated; `gelu`: GELU by tanh."""
        parts = tuple(self.linear(x, layer) for layer in layers)
        if self.native is not None:
            return self.native.silu_mul(*parts, gelu=gelu)
        if self.cuda is not None and not gelu:
            return self.cuda.silu_mul(*parts)
        gate, up = parts if len(parts) == 2 else parts[0].chunk(2, dim=-1)
        return F.gelu(gate, approximate="tanh").mul_(up) if gelu else F.silu(gate, inplace=True).mul_(up)


def choose_kernels(
    device: torch.device, dtype: torch.dtype, native: CpuDecodingKernels | None = None, *, float8: bool = False
) -> Kernels:
    """Choose kernels by device and precision; `native` are the machine's, None for torch's operations."""
    on_cpu = device.type == "cpu"
    native = native if on_cpu and dtype in STORAGE else None
    return Kernels(
        dtype=dtype,
        native=native,
        cuda=cuda_kernels(device, dtype) if device.type == "cuda" else None,
        onednn=on_cpu and prefers_onednn(dtype),
        float8=float8,
    )


def kernels_reason(device: torch.device, dtype: torch.dtype, native: CpuDecodingKernels | None) -> str:
    """Describe the kernels that `choose_kernels` takes, and those that draw tokens on CUDA."""
    if device.type == "cuda" and kernels_problem(device, dtype) is None:
        problem = drawing_problem(device, dtype)
        return "kernels in Triton" if problem is None else f"kernels in Triton, but torch draws the tokens: {problem}"
    if device.type != "cpu" or dtype not in STORAGE:
        return f"torch's kernels, as compiled ones are for float32 and bfloat16 on a CPU, not {dtype} on {device.type}"
    if native is None:
        return f"torch's kernels, as there are no compiled ones: {library().reason}"
    return f"compiled kernels ({library().reason})"


def rms_norm(x: Float[Tensor, "... D"], scale: Float[Tensor, "*heads D"], eps: float) -> Float[Tensor, "... D"]:
    """Return x / rms(x) * scale; the root mean square is computed in float32 at any precision, as in transformers.

    In float64 that rounding exceeds all others, so it is repeated operation by operation.
    """
    if x.dtype == torch.float64:
        single = x.float()
        return scale * (single * torch.rsqrt(single.pow(2).mean(-1, keepdim=True) + eps)).double()
    if scale.dim() == 1:
        return F.rms_norm(x, (x.shape[-1],), scale, eps)
    return F.rms_norm(x, (x.shape[-1],), None, eps).mul_(scale)
