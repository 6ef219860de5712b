"""Kernels for the passes over logits of `logprobs.token_logprobs`: each reads the logits once, and copies none."""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.kernels.cpu.compiling import STORAGE, kernel, library
from paceline.kernels.logprobs import LogitPasses


def logit_passes(device: torch.device, dtype: torch.dtype) -> LogitPasses | None:
    """Return the passes for logits of this precision; None without kernels, where torch does the work."""
    if device.type != "cpu" or dtype not in STORAGE or library().functions is None:
        return None
    return LogitPasses(statistics=_statistics, to_gradients=_to_gradients)


def _statistics(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    rows, vocabulary = logits.shape
    targets = _checked(targets, vocabulary)
    logprobs, entropies, normalisers = (logits.new_empty(rows, dtype=torch.float32) for _ in range(3))
    kernel("logit_statistics", "pp iii f ppp")(
        logits, targets, rows, vocabulary, logits.dtype, 1 / temperature, logprobs, entropies, normalisers
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
    targets = _checked(targets, logits.shape[1])
    by_logprob, by_entropy = (None if gradient is None else gradient.contiguous() for gradient in gradients)
    kernel("logit_gradients", "pp iii f pppp")(
        logits, targets, *logits.shape, logits.dtype, 1 / temperature, normalisers, entropy, by_logprob, by_entropy
    )


def _checked(targets: Tensor, vocabulary: int) -> Tensor:
    """Check token ids: C would read and write outside the logits for one that no embedding has looked up."""
    targets = targets.to(torch.int64).contiguous()
    if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < vocabulary:
        raise IndexError(f"a target lies outside the {vocabulary} tokens of the output embedding")
    return targets
