"""Experts of a mixture in one call: rows sorted by expert, two products with a gate between them, weighted sums.

N tokens of k choices each, E experts, W width of the model, I inner width of an expert; W and I are multiples of 16.
A choice that is none of the E experts adds nothing.
"""

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from paceline.kernels.cpu.compiling import STORAGE, kernel, library
from paceline.kernels.linear import has_fast_bfloat16

CHUNK, DEPTH, BLOCK, PANEL = 128, 256, 48, 64
"""Sizes in experts.c, for its working memory; PANEL at its widest."""
FEW_ROWS = 16
"""Rows of an expert, on average, from which on a processor with units for bfloat16 is faster by torch's products."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """What lies between the two products."""

    kind: Literal["silu", "clamped"]
    """silu(gate) * up, of halves; or gate * sigmoid(alpha * gate) * (up + 1), interleaved and clamped first."""
    alpha: float = 0.0
    limit: float = 0.0
    """The gate is at most `limit`, up within -limit and limit."""


SILU = Gate(kind="silu")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertMatrices:
    """Both matrices of all experts, in one precision."""

    gate_up: Float[Tensor, "E 2*I W"]
    down: Float[Tensor, "E W I"]
    gate_up_bias: Float[Tensor, "E 2*I"] | None = None
    down_bias: Float[Tensor, "E W"] | None = None
    transposed: bool = False
    """Both matrices lie the other way, [E, W, 2 I] and [E, I, W]."""
    gate: Gate = SILU


def experts_serve(x: Tensor, experts: ExpertMatrices, choices: Int[Tensor, "N k"]) -> bool:
    """Return True if the kernel computes these experts: by device, precision and sizes alone, so runs can be repeated.

    It has gradients in float32 only.
    """
    sides = experts.down.shape[1:]
    is_served = x.is_cpu and x.dtype == experts.gate_up.dtype == experts.down.dtype and x.dtype in STORAGE
    if not is_served or any(side % 16 for side in sides) or not choices.numel():
        return False
    if x.dtype == torch.bfloat16:
        many = choices.numel() >= FEW_ROWS * len(experts.down) and has_fast_bfloat16()
        if many or torch.is_grad_enabled():
            return False
    return library().functions is not None


def weighted_experts(
    x: Float[Tensor, "N W"], choices: Int[Tensor, "N k"], weights: Float[Tensor, "N k"], experts: ExpertMatrices
) -> Float[Tensor, "N W"]:
    """Return the sum over each token's choices of weight * expert(x), computed in float32, in the precision of `x`.

    An expert without rows has a gradient of 0.
    """
    matrices = (experts.gate_up, experts.gate_up_bias, experts.down, experts.down_bias)
    options = (experts.transposed, experts.gate)
    return cast(Tensor, _WeightedExperts.apply(x, choices, weights.float(), *matrices, *options))  # type: ignore[no-untyped-call]


class _WeightedExperts(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0913 - one kernel's tensors
        ctx: Any,
        x: Tensor,
        choices: Tensor,
        weights: Tensor,
        gate_up: Tensor,
        gate_up_bias: Tensor | None,
        down: Tensor,
        down_bias: Tensor | None,
        transposed: bool,
        gate: Gate,
    ) -> Tensor:
        x, choices, weights = x.contiguous(), choices.contiguous(), weights.contiguous()
        count, inner = len(down), down.shape[1 if transposed else 2]
        sizes = (*choices.shape, count, x.shape[1], inner)
        rows, tokens = choices.numel(), len(x)
        order, places, borders = (torch.empty(size, dtype=torch.int64) for size in (rows, rows, count + 1))
        kept = torch.empty(rows, 2 * inner) if any(ctx.needs_input_grad) else None
        made, out = torch.empty(rows, x.shape[1]), torch.empty_like(x)
        threads, each, scratch = _scratch(rows, x.shape[1] + 3 * inner)
        shape = (int(transposed), x.dtype, _kind(gate), gate.alpha, gate.limit)
        kernel("experts_forward", "ppp iiiii pppp iii ff ppp ppp pii")(
            *(x, choices, weights, *sizes, gate_up, gate_up_bias, down, down_bias, *shape),
            *(order, places, borders, kept, made, out, scratch, each, threads),
        )
        if kept is not None:
            ctx.save_for_backward(x, weights, gate_up, gate_up_bias, down, down_bias, order, places, borders, kept)
            ctx.sizes, ctx.shape = (tokens, *sizes[1:]), (int(transposed), *shape[2:])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weights, gate_up, gate_up_bias, down, down_bias, order, places, borders, kept = ctx.saved_tensors
        rows, inner = len(kept), kept.shape[1] // 2
        wanted = [ctx.needs_input_grad[place] for place in (0, 3, 4, 5, 6)]
        grads = [
            torch.empty_like(tensor) if is_wanted and tensor is not None else None
            for is_wanted, tensor in zip(wanted, (x, gate_up, gate_up_bias, down, down_bias), strict=True)
        ]
        by_weights = torch.empty_like(weights)
        work = (torch.empty(rows, 2 * inner), torch.empty(rows, inner), torch.empty(rows, x.shape[1]))
        threads, each, scratch = _scratch(rows, x.shape[1] + inner)
        kernel("experts_backward", "pp iiiii ppp ii ff ppp pp pppppp ppp pii")(
            *(x, weights, *ctx.sizes, gate_up, down, down_bias, *ctx.shape, order, places, borders),
            *(kept, grad.contiguous(), by_weights, *grads, *work, scratch, each, threads),
        )
        by_x, *by_matrices = grads
        return by_x, None, by_weights, *by_matrices, None, None


def _kind(gate: Gate) -> int:
    return ("silu", "clamped").index(gate.kind)


def _scratch(rows: int, width: int) -> tuple[int, int, Tensor]:
    """Return the number of threads, the floats for each, and working memory for all."""
    each = max(min(CHUNK, rows) * width + DEPTH * PANEL, DEPTH * (BLOCK + PANEL))
    each = -(-each // 32) * 32  # threads write to cache lines of their own
    threads = torch.get_num_threads()
    return threads, each, torch.empty(threads * each)
