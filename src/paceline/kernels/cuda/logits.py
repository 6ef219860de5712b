"""Triton kernels for the passes over logits of `logprobs.token_logprobs`: each reads the logits once, and copies none.

torch's operations make a dozen float32 tensors of the logits' size instead. On an H100, with 152,000 tokens in the
vocabulary, these took two thirds of the head's time.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.kernels.cuda.triton_check import trial_problem, triton_problem
from paceline.kernels.logprobs import LogitPasses, from_row_sums, row_sums

BLOCK = 4096
"""Logits that a program has at a time."""
PROBE_TOLERANCE = 1e-3
"""Largest difference from torch's operations in nats that counts as rounding."""


def logit_passes(device: torch.device, dtype: torch.dtype) -> LogitPasses | None:
    """Return the passes for logits of this precision; None where torch does the work."""
    return None if passes_problem(device, dtype) is not None else PASSES


@functools.cache
def passes_problem(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why the kernels do not serve here; if nothing speaks against them, they are tried on made-up numbers."""
    return triton_problem(device, dtype) or _tried(device, dtype)


def _tried(device: torch.device, dtype: torch.dtype) -> str | None:
    drawn = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0), device="cpu")
    logits, targets = drawn.to(device, dtype), torch.tensor([0, 4999, 7], device=device)

    def difference(got: tuple[Tensor, ...]) -> float:
        wanted = from_row_sums(*row_sums(logits, targets, 0.8), 0.8)
        return max(float((computed - expected).abs().max()) for computed, expected in zip(got, wanted, strict=True))

    return trial_problem(lambda: _statistics(logits, targets, 0.8), difference, PROBE_TOLERANCE)


def _statistics(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    from paceline.kernels.cuda import triton_kernels

    rows, vocabulary = logits.shape
    logprobs, entropies, normalisers = (logits.new_empty(rows, dtype=torch.float32) for _ in range(3))
    if rows:
        triton_kernels.statistics[(rows,)](
            logits.contiguous(),
            targets.contiguous(),
            logprobs,
            entropies,
            normalisers,
            vocabulary,
            1 / temperature,
            BLOCK=BLOCK,
        )
    return logprobs, entropies, normalisers


def _to_gradients(
    logits: Tensor,
    targets: Tensor,
    normalisers: Tensor,
    entropy: Tensor,
    gradients: Sequence[Tensor | None],
    temperature: float,
) -> None:
    from paceline.kernels.cuda import triton_kernels

    assert logits.is_contiguous()  # it is overwritten in place
    rows, vocabulary = logits.shape
    by_logprob, by_entropy = (None if gradient is None else gradient.contiguous() for gradient in gradients)
    if rows:
        triton_kernels.gradients[(rows, -(-vocabulary // BLOCK))](
            logits,
            targets.contiguous(),
            normalisers,
            entropy,
            normalisers if by_logprob is None else by_logprob,
            normalisers if by_entropy is None else by_entropy,
            vocabulary,
            1 / temperature,
            HAS_LOGPROB=by_logprob is not None,
            HAS_ENTROPY=by_entropy is not None,
            BLOCK=BLOCK,
        )


PASSES = LogitPasses(statistics=_statistics, to_gradients=_to_gradients)
