"""Logprobs of sampled tokens and entropies of their distributions, from hidden states in chunks.

N completion tokens of a micro-batch laid end to end (no padding), H hidden width, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from paceline.kernels.linear import product

CHUNK_ELEMENTS = {"cpu": 1 << 21, "cuda": 1 << 24}
"""Logits in float32 at once: enough for a CPU's cache between two passes, or to keep a GPU busy."""
PRODUCT_ROWS = {"cpu": 256, "cuda": 2048}
"""Least tokens of a product with the output embedding. With fewer, reading the matrix costs more than computing, and on
a GPU so does adding to its float32 gradient once per product."""
HEAD_BLOCK = 1 << 21
"""Elements of the output embedding whose gradient is added up at once, through a CPU's cache."""


Gradients = Sequence[Tensor | None]
"""Gradients of the loss by logprobs and by entropies, per token; None where nothing depends on them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogitPasses:
    """Operations on the logits of a few rows between two matrix products."""

    statistics: Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor, Tensor]]
    """Function from logits [R, V], targets [R] and temperature to logprobs, entropies and scaled log Z."""
    to_gradients: Callable[[Tensor, Tensor, Tensor, Tensor, Gradients, float], None]
    """Function that overwrites logits with the gradient by the scaled logits, given targets, normalisers, entropies,
    gradients and temperature."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadRule:
    """How a model makes logits of last hidden states h and its output embedding W: cap * tanh(scale * W h / cap)."""

    scale: float = 1.0
    """Product of all factors before and after the output embedding, above 0."""
    cap: float | None = None
    """None: the logits are scale * W h."""


PLAIN = HeadRule()
"""The logits are what the output embedding makes."""


def token_logprobs(  # noqa: PLR0913 - one distribution and how its logits are cut, without a record for one caller
    hidden: Float[Tensor, "N H"],
    head: Float[Tensor, "V H"],
    targets: Int[Tensor, " N"],
    *,
    temperature: float,
    chunk_elements: int | None = None,
    product_rows: int | None = None,
    passes: LogitPasses | None = None,
    rule: HeadRule = PLAIN,
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Return the logprob of each target and the entropy of its distribution, softmax(logits / temperature).

    By default the logits are hidden @ head.T; by another `rule` they are scaled or capped, as Gemma 2's.

    Logits exist for `product_rows` tokens at a time in the precision of `hidden`. In float32 (float64 for float64
    input) there are `chunk_elements` at a time; None chooses both by device. `passes` that need no such copy may
    replace torch's operations. Logits are computed again in the backward pass, so memory does not grow with N * V.

    Raises:
        ValueError: `temperature` is not positive.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    rows = max(1, (chunk_elements or CHUNK_ELEMENTS[hidden.device.type]) // head.shape[0])
    many = max(rows, product_rows or PRODUCT_ROWS[hidden.device.type])
    few = rows if passes is None or rule.cap is not None else many
    chosen = passes or TORCH
    if rule.cap is None:  # a factor of the logits is a temperature
        temperature /= rule.scale
    else:
        chosen = capped(chosen, rule.scale, rule.cap)
    chunks = _Chunks(many=many, few=few, passes=chosen)
    logprobs, entropy = cast(
        tuple[Tensor, Tensor],
        _TokenLogprobs.apply(hidden, head, targets, temperature, chunks),  # type: ignore[no-untyped-call]
    )
    return logprobs, entropy


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chunks:
    many: int
    """Tokens of a product."""
    few: int
    """Tokens of a pass over their logits."""
    passes: LogitPasses


class _TokenLogprobs(torch.autograd.Function):
    """Chunked forward that keeps only normalisers and entropies; the backward computes each chunk's softmax again."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float, chunks: _Chunks
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)  # an unused entropy must cost nothing
        matrix, results = head.to(hidden.dtype), []
        for many, chosen in zip(torch.split(hidden, chunks.many), torch.split(targets, chunks.many), strict=True):
            logits = product(many, matrix)
            for few, wanted in zip(torch.split(logits, chunks.few), torch.split(chosen, chunks.few), strict=True):
                results.append(chunks.passes.statistics(few, wanted, temperature))
        logprobs, entropy, normalisers = (torch.cat(parts) for parts in zip(*results, strict=True))
        ctx.save_for_backward(hidden, head, targets, normalisers, entropy)
        ctx.temperature, ctx.chunks = temperature, chunks
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(gradient is None for gradient in gradients):
            return (None,) * 5
        hidden, head, targets, normalisers, entropy = ctx.saved_tensors
        chunks: _Chunks = ctx.chunks
        # by the scaled logits below, so divided here: once per token, not once per logit
        scaled = [None if gradient is None else gradient / ctx.temperature for gradient in gradients]
        matrix, grad_hidden = head.to(hidden.dtype), torch.empty_like(hidden)
        grad_head = torch.zeros_like(head) if ctx.needs_input_grad[1] else None
        for start in range(0, len(hidden), chunks.many):
            many = slice(start, min(start + chunks.many, len(hidden)))
            logits = product(hidden[many], matrix)
            for first in range(many.start, many.stop, chunks.few):
                few = slice(first, min(first + chunks.few, many.stop))
                chunks.passes.to_gradients(
                    logits[few.start - start : few.stop - start],
                    targets[few],
                    normalisers[few],
                    entropy[few],
                    [None if gradient is None else gradient[few] for gradient in scaled],
                    ctx.temperature,
                )
            grad_hidden[many] = product(logits, matrix.T)
            if grad_head is not None:
                _add_product(grad_head, logits, hidden[many])
        return grad_hidden, grad_head, None, None, None


def _statistics(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return logprobs of the targets, entropies and log Z of the scaled logits of a few rows."""
    return from_row_sums(*row_sums(logits, targets, temperature), temperature)


def row_sums(
    logits: Float[Tensor, "R V"], targets: Int[Tensor, " R"], temperature: float
) -> tuple[Float[Tensor, " R"], Float[Tensor, " R"], Float[Tensor, " R"], Float[Tensor, " R"]]:
    """Return per row the largest logit, and relative to it, scaled: sum of exp, sum of exp * logit, the target's.

    Relative to the largest all is bounded, and each step is one pass.
    """
    top = logits.amax(dim=-1, keepdim=True)
    if top.dtype in (torch.bfloat16, torch.float16):
        top = top.float()  # at least float32: bfloat16 logits cost 0.01 nats per token
    shifted = logits - top
    if temperature != 1:
        shifted.div_(temperature)
    exponentials = shifted.exp()
    total = exponentials.sum(-1)
    weighted = torch.bmm(exponentials[:, None], shifted[:, :, None])[:, 0, 0]
    return top[:, 0], total, weighted, shifted.gather(1, targets[:, None])[:, 0]


def from_row_sums(
    top: Float[Tensor, " R"],
    total: Float[Tensor, " R"],
    weighted: Float[Tensor, " R"],
    chosen: Float[Tensor, " R"],
    temperature: float,
) -> tuple[Float[Tensor, " R"], Float[Tensor, " R"], Float[Tensor, " R"]]:
    """Return logprobs of the targets, entropies and log Z from `row_sums`: H = log Z - sum p * logit."""
    log_total = total.log()
    return chosen - log_total, log_total - weighted / total, top / temperature + log_total


def to_gradients(
    logits: Tensor,
    targets: Tensor,
    normalisers: Tensor,
    entropy: Tensor,
    gradients: Gradients,
    temperature: float,
    *,
    is_here: Bool[Tensor, " R"] | None = None,
) -> None:
    """Overwrite rows of logits with the gradient by the scaled logits, computed in float32 and rounded once.

    d logprob / d logits = onehot(target) - p;  d entropy / d logits = -p * (log p + entropy)

    `is_here`: of logits that are a part of their rows, which have their target among them; elsewhere the target may
    be any of them. None: all.
    """
    by_logprob, by_entropy = gradients
    log_softmax = torch.add(-normalisers[:, None], logits, alpha=1 / temperature)
    inner: Tensor | None = None
    if by_entropy is not None:
        inner = by_entropy[:, None] * (log_softmax + entropy[:, None])
        if by_logprob is not None:
            inner += by_logprob[:, None]
    probabilities = log_softmax.exp_()
    at_target = None
    if by_logprob is not None:
        # separately: 1 - p of a near-certain token would drown in the rounding of p
        chosen = probabilities.gather(1, targets[:, None])
        factor = by_logprob[:, None] if inner is None else inner.gather(1, targets[:, None])
        of_target = by_logprob if is_here is None else by_logprob.where(is_here, 0.0)
        at_target = of_target[:, None] - chosen * factor
    factor = inner.neg_() if inner is not None else -cast(Tensor, by_logprob)[:, None]
    torch.mul(probabilities, factor, out=logits)
    if at_target is not None:
        logits.scatter_(1, targets[:, None], at_target.to(logits.dtype))


def capped(passes: LogitPasses, scale: float, cap: float) -> LogitPasses:
    """Return passes that cap the logits x first, in float32 at least: cap * tanh(scale * x / cap).

    The derivative is scale * (1 - tanh^2).
    """

    def tanh(logits: Tensor) -> Tensor:
        wide = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
        return (wide / (cap / scale)).tanh_()

    def statistics(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        return passes.statistics(tanh(logits).mul_(cap), targets, temperature)

    def gradients(
        logits: Tensor, targets: Tensor, normalisers: Tensor, entropy: Tensor, outer: Gradients, temperature: float
    ) -> None:
        bent = tanh(logits)
        slope = torch.sub(scale, bent.square(), alpha=scale)
        bent.mul_(cap)
        passes.to_gradients(bent, targets, normalisers, entropy, outer, temperature)
        logits.copy_(bent.mul_(slope))

    return LogitPasses(statistics=statistics, to_gradients=gradients)


TORCH = LogitPasses(statistics=_statistics, to_gradients=to_gradients)


def _add_product(total: Float[Tensor, "V H"], grad_logits: Float[Tensor, "N V"], hidden: Float[Tensor, "N H"]) -> None:
    """Add grad_logits.T @ hidden to `total`, without a second matrix of that size."""
    if total.dtype == hidden.dtype:
        total.addmm_(grad_logits.T, hidden)
        return
    if total.is_cuda and total.dtype == torch.float32:  # its products give float32 of half precision by themselves
        torch.ops.aten.addmm.dtype_out(total, grad_logits.T, hidden, torch.float32, out=total)
        return
    rows = max(1, HEAD_BLOCK // total.shape[1])
    for part, columns in zip(torch.split(total, rows), torch.split(grad_logits, rows, dim=1), strict=True):
        part += columns.T @ hidden
