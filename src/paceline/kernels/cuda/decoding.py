"""Operations between the products and the attention of a decoding step, each in one kernel.

A recorded step starts no kernel from the host, but each still costs the device two microseconds and more. Torch's
operations made twenty of every layer's twenty-seven.

N rows, W width of the model, I of the gated layer, H query heads, K key/value heads, D head width.
"""

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from paceline.kernels.cuda.triton_check import next_power, trial_problem, triton_problem, warps_of
from paceline.kernels.float8 import FLOAT8

BLOCK = 1024
"""Columns of a gated layer's row that a program has at a time."""
PROBE_TOLERANCE = 3e-2
"""Largest difference from torch's operations that counts as rounding, for numbers around 1 in bfloat16."""


class CudaDecodingKernels:
    """The kernels with their shapes; one instance serves all decoders."""

    def add_norm(
        self, residual: Float[Tensor, "N W"], update: Tensor | None, scale: Float[Tensor, " W"], eps: float
    ) -> Float[Tensor, "N W"]:
        """Add `update` to `residual` in place; return residual / rms(residual) * scale."""
        from paceline.kernels.cuda import triton_kernels

        normed = torch.empty_like(residual)
        rows, width = residual.shape
        triton_kernels.add_norm[(rows,)](
            residual,
            residual if update is None else update.contiguous(),
            scale,
            normed,
            width,
            eps,
            HAS_UPDATE=update is not None,
            BLOCK=next_power(width),
        )
        return normed

    def silu_mul(self, gate: Float[Tensor, "N I"], up: Float[Tensor, "N I"] | None = None) -> Float[Tensor, "N I"]:
        """Return silu(gate) * up; without `up`, of the two halves of `gate` [N, 2 I]."""
        from paceline.kernels.cuda import triton_kernels

        width = gate.shape[1] if up is not None else gate.shape[1] // 2
        out = gate.new_empty(len(gate), width)
        up = gate[:, width:] if up is None else up
        triton_kernels.silu_mul[(len(gate), -(-width // BLOCK))](
            gate, up, out, width, gate.stride(0), up.stride(0), BLOCK=BLOCK
        )
        return out

    def quantized(self, x: Float[Tensor, "N W"]) -> tuple[Shaped[Tensor, "N W"], Float[Tensor, "N 1"]]:
        """Return what `float8.quantized` does."""
        from paceline.kernels.cuda import triton_kernels

        rows, width = x.shape
        numbers, scales = x.new_empty(rows, width, dtype=FLOAT8), x.new_empty(rows, 1, dtype=torch.float32)
        triton_kernels.quantize_rows[(rows,)](
            x.contiguous(), numbers, scales, width, BLOCK=next_power(width), num_warps=warps_of(width)
        )
        return numbers, scales

    def rotate_and_store(
        self,
        qkv: Float[Tensor, "N (H+2K)*D"],
        norm: tuple[Tensor, float] | None,
        turn: "RotaryTurn",
        cache: tuple[Float[Tensor, "C K D"], Float[Tensor, "C K D"]],
    ) -> tuple[Float[Tensor, "N H D"], Float[Tensor, "N H D"]]:
        """Turned queries, by row and by place among the rows of all prompts; turned keys and values go to the cache.

        `norm`: scale [H+K, D] and epsilon of the norm over each query and key head, if any.
        """
        from paceline.kernels.cuda import triton_kernels

        keys, values = cache
        kv_heads, width = keys.shape[1:]
        rows, heads = len(qkv), qkv.shape[1] // width
        query = qkv.new_empty(rows, heads - 2 * kv_heads, width)
        ordered = torch.empty_like(query)
        triton_kernels.rotate_and_store[(rows, heads)](
            qkv,
            turn.cosine if norm is None else norm[0],
            turn.cosine,
            turn.sine,
            turn.positions,
            turn.places,
            turn.query_places,
            query,
            ordered,
            keys,
            values,
            heads - 2 * kv_heads,
            kv_heads,
            width,
            0.0 if norm is None else norm[1],
            HAS_NORM=norm is not None,
            BLOCK=next_power(width),
        )
        return query, ordered

    def merge(
        self,
        row: tuple[Float[Tensor, "N H D"], Float[Tensor, "H N"]],
        prompt: tuple[Float[Tensor, "N H D"], Float[Tensor, "H N"]],
        place_of: Int[Tensor, " N"],
    ) -> Float[Tensor, "N H*D"]:
        """Merge attention over two parts, of which the second has its rows at `place_of`, as `flash_attention.merged`
        does."""
        from paceline.kernels.cuda import triton_kernels

        rows, heads, width = row[0].shape
        out = torch.empty_like(row[0])
        triton_kernels.merge[(rows, heads)](
            row[0], row[1], prompt[0], prompt[1], place_of, out, rows, heads, width, BLOCK=next_power(width)
        )
        return out.flatten(1)


@dataclass(frozen=True, kw_only=True, slots=True)
class RotaryTurn:
    """Positions of a step's new tokens, the same for all layers."""

    cosine: Float[Tensor, "L D"]
    sine: Float[Tensor, "L D"]
    """Sines, with the sign of the rotated half."""
    positions: Int[Tensor, " N"]
    places: Int[Tensor, " N"]
    """Places in the cache."""
    query_places: Int[Tensor, " N"]
    """Place of each row among the rows of all prompts, prompt by prompt."""


def decoding_kernels(device: torch.device, dtype: torch.dtype) -> CudaDecodingKernels | None:
    """Return the kernels for rows of this precision; None where torch does the work."""
    return CudaDecodingKernels() if kernels_problem(device, dtype) is None else None


@functools.cache
def kernels_problem(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why the kernels do not serve here; if nothing speaks against them, one is tried on made-up numbers."""
    return triton_problem(device, dtype) or _tried(device, dtype)


def _tried(device: torch.device, dtype: torch.dtype) -> str | None:
    drawn = torch.randn(3, 100, generator=torch.Generator().manual_seed(0), device="cpu").to(device, dtype)
    scale = torch.ones(100, device=device, dtype=dtype)

    def difference(got: Tensor) -> float:
        wanted = torch.nn.functional.rms_norm((2 * drawn).float(), (100,), scale.float(), 1e-6)
        return float((got.float() - wanted).abs().max())

    return trial_problem(
        lambda: CudaDecodingKernels().add_norm(drawn.clone(), drawn, scale, 1e-6), difference, PROBE_TOLERANCE
    )
