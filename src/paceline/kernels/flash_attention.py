"""FlashAttention over sequences of different lengths laid end to end, without padding, by torch's operators.

T query tokens and U key tokens in B sequences, H query heads, K key/value heads, D head width. A kernel returns the
output and, for each query, the logsumexp of its scores. With it, attention over two parts of the keys is merged
(`merged`), and a part's gradient follows from the whole's output and logsumexp.

torch's public `varlen_attn` drops the gradient of the logsumexp, so its two operators are called here instead. They
align causal masks to the bottom right if queries and keys differ in number: the last query sees the last key."""

import functools
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from paceline.errors import first_line

PROBE_TOLERANCE = 3e-2
"""Largest difference from exact attention that counts as half precision's rounding, relative to the largest number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spans:
    """Pairs of sequences: the queries of sequence i see the keys of sequence i."""

    queries: Int[Tensor, " B+1"]
    """Start of each sequence's queries, and T (int32). No two are equal if a gradient is needed."""
    keys: Int[Tensor, " B+1"]
    """Start of each sequence's keys, and U (int32)."""
    most_queries: int
    """Upper bound of the queries of the longest sequence."""
    most_keys: int
    causal: bool
    """True if a query sees the keys up to itself: the last query of a sequence has the last key."""
    used_keys: Int[Tensor, " B"] | None = None
    """Number of each sequence's keys to read (int32), at least one; None: all. Without gradients."""
    window: int | None = None
    """Number of keys that a query of causal spans sees at most, up to itself; None: all of them."""

    @property
    def reach(self) -> dict[str, int]:
        """The window as torch's operators take it: keys on the left and on the right of a query."""
        return {} if self.window is None else {"window_size_left": self.window - 1, "window_size_right": 0}


States = tuple[Tensor, Tensor, Tensor]
"""Query, key and value, or their gradients."""


class AttentionKernel(Protocol):
    """Kernel for softmax(scaling * query @ key.T) @ value within spans."""

    def forward(
        self,
        query: Float[Tensor, "T H D"],
        key: Float[Tensor, "U K D"],
        value: Float[Tensor, "U K D"],
        spans: Spans,
        scaling: float,
    ) -> tuple[Float[Tensor, "T H D"], Float[Tensor, "H T"]]:
        """Return the output and the logsumexp of each query's scaled scores in nats, at least float32."""

    def backward(
        self,
        grad: Float[Tensor, "T H D"],
        states: tuple[Float[Tensor, "T H D"], Float[Tensor, "U K D"], Float[Tensor, "U K D"]],
        seen: tuple[Float[Tensor, "T H D"], Float[Tensor, "H T"]],
        spans: Spans,
        scaling: float,
    ) -> States:
        """Return gradients of query, key and value (`states`), given output and logsumexp over all keys (`seen`).

        These spans may hold a part of those keys only: then the gradients are this part's share.
        """


class FlashKernel(AttentionKernel):
    """Torch's operators for CUDA."""

    @override
    def forward(self, query: Tensor, key: Tensor, value: Tensor, spans: Spans, scaling: float) -> tuple[Tensor, Tensor]:
        within = (spans.queries, spans.keys, spans.most_queries, spans.most_keys, 0.0, spans.causal)
        out, normaliser, *_ = torch.ops.aten._flash_attention_forward(
            query, key, value, *within, return_debug_mask=False, scale=scaling, seqused_k=spans.used_keys, **spans.reach
        )
        return out, normaliser

    @override
    def backward(
        self, grad: Tensor, states: States, seen: tuple[Tensor, Tensor], spans: Spans, scaling: float
    ) -> States:
        within = (spans.queries, spans.keys, spans.most_queries, spans.most_keys, 0.0, spans.causal)
        no_dropout = torch.empty(2, dtype=torch.uint64, device=grad.device)  # a random state that is not read
        gradients: States = torch.ops.aten._flash_attention_backward(
            grad, *states, *seen, *within, no_dropout, grad.new_empty(0), scale=scaling, **spans.reach
        )
        return gradients


class DenseKernel(AttentionKernel):
    """Kernel by the formulas, over all pairs of tokens: any device and precision, the reference of other kernels."""

    @override
    def forward(self, query: Tensor, key: Tensor, value: Tensor, spans: Spans, scaling: float) -> tuple[Tensor, Tensor]:
        repeats = query.shape[1] // key.shape[1]
        scores = _scores(query, key, spans, scaling)
        normaliser = scores.logsumexp(-1)
        shares = torch.exp(scores - normaliser[..., None]).to(value.dtype)
        return torch.einsum("htu,uhd->thd", shares, value.repeat_interleave(repeats, 1)), normaliser

    @override
    def backward(
        self, grad: Tensor, states: States, seen: tuple[Tensor, Tensor], spans: Spans, scaling: float
    ) -> States:
        # d score = share * (d share - sum over the row of share * d share)
        (query, key, value), (out, normaliser) = states, seen
        heads = (key.shape[1], query.shape[1] // key.shape[1])
        shares = torch.exp(_scores(query, key, spans, scaling) - normaliser[..., None]).to(grad.dtype)
        grad_shares = torch.einsum("thd,uhd->htu", grad, value.repeat_interleave(heads[1], 1))
        grad_scores = shares * (grad_shares - (grad * out).sum(-1).T[..., None]) * scaling
        grad_query = torch.einsum("htu,uhd->thd", grad_scores, key.repeat_interleave(heads[1], 1))
        grad_key = torch.einsum("htu,thd->uhd", grad_scores, query).view(len(key), *heads, -1).sum(2)
        grad_value = torch.einsum("htu,thd->uhd", shares, grad).view(len(key), *heads, -1).sum(2)
        return grad_query, grad_key, grad_value


def _scores(query: Tensor, key: Tensor, spans: Spans, scaling: float) -> Float[Tensor, "H T U"]:
    scores = torch.einsum("thd,uhd->htu", query, key.repeat_interleave(query.shape[1] // key.shape[1], 1)) * scaling
    at_query, at_key = (torch.arange(len(states), device=spans.queries.device) for states in (query, key))
    of_query = torch.bucketize(at_query, spans.queries[1:], right=True)
    of_key = torch.bucketize(at_key, spans.keys[1:], right=True)
    visible = of_query[:, None] == of_key
    if spans.causal:
        behind = (at_query - spans.queries[1:][of_query])[:, None] - (at_key - spans.keys[1:][of_key])
        visible &= behind >= 0
        if spans.window is not None:
            visible &= behind < spans.window
    if spans.used_keys is not None:
        visible &= at_key < (spans.keys[:-1] + spans.used_keys)[of_key]
    exact = scores if scores.dtype == torch.float64 else scores.float()
    return exact.masked_fill(~visible, -torch.inf)


def merged(
    first: tuple[Float[Tensor, "T H D"], Float[Tensor, "H T"]],
    second: tuple[Float[Tensor, "T H D"], Float[Tensor, "H T"]],
) -> Float[Tensor, "T H D"]:
    """Merge attention over two disjoint sets of keys, from output and logsumexp over each.

    The first has the share exp(lse_1) / (exp(lse_1) + exp(lse_2)) = sigmoid(lse_1 - lse_2) of the exponentials.
    """
    share = torch.sigmoid(first[1] - second[1]).T[..., None]
    exact = share.dtype
    return torch.lerp(second[0].to(exact), first[0].to(exact), share).to(first[0].dtype)


def with_sinks(
    out: Float[Tensor, "T H D"], normaliser: Float[Tensor, "T H"], sinks: Float[Tensor, " H"]
) -> tuple[Float[Tensor, "T H D"], Float[Tensor, "T H"]]:
    """Add one more key to attention, with the score `sinks` of its head and the value 0: output and logsumexp.

    out' = out * exp(lse) / (exp(lse) + exp(s)) = out * sigmoid(lse - s),    lse' = log(exp(lse) + exp(s))
    """
    scores = sinks.to(normaliser.dtype)
    share = torch.sigmoid(normaliser - scores)[..., None]
    return (out * share).to(out.dtype), torch.logaddexp(normaliser, scores)


def grad_of_sinks(
    grad: Float[Tensor, "T H D"], out: Float[Tensor, "T H D"], normaliser: Float[Tensor, "T H"], sinks: Tensor
) -> Float[Tensor, " H"]:
    """Return the gradient of the sinks' scores, given output and logsumexp with them.

    ds = -sum over tokens of exp(s - lse') * <grad, out'>
    """
    exact = normaliser.dtype
    products = (grad.to(exact) * out.to(exact)).sum(-1)
    return -(torch.exp(sinks.to(exact) - normaliser) * products).sum(0).to(sinks.dtype)


@functools.cache
def flash_problem(
    device: torch.device, dtype: torch.dtype, heads: tuple[int, int], head_size: int, *, windowed: bool = False
) -> str | None:
    """Return why `FlashKernel` cannot serve a model of these query and key/value heads here; None if it can.

    Where the limits allow it, it is tried once on made-up numbers; with a window if some layer has one.
    """
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    problem = limits_problem(device, dtype, head_size, capability=capability)
    if problem is not None:
        return problem
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(17, count, head_size, generator=generator).to(device, dtype) for count in heads)
    return kernel_problem(FlashKernel(), query, key, windowed=windowed)


def limits_problem(
    device: torch.device, dtype: torch.dtype, head_size: int, *, capability: tuple[int, int] | None
) -> str | None:
    """Return the exceeded limit of `FlashKernel`, or None; `capability` is the CUDA device's, None elsewhere.

    The limits are those of the kernels in torch 2.11 to 2.13. Gradients of heads wider than 192 need shared memory that
    only data-centre chips have (compute capability x.0).
    """
    if device.type != "cuda" or capability is None:
        return f"it runs on CUDA only, the model is on {device.type}"
    if capability < (8, 0):
        return f"it needs compute capability 8.0, the device has {capability[0]}.{capability[1]}"
    if dtype not in (torch.bfloat16, torch.float16):
        return f"it computes in bfloat16 and float16, not in {dtype}"
    widest = 256 if capability[1] == 0 and capability[0] in (8, 9, 10) else 192
    if head_size % 8 or head_size > widest:
        return f"its heads have a multiple of 8 up to {widest} dimensions here, the model's {head_size}"
    return None


def kernel_problem(
    kernel: AttentionKernel, query: Float[Tensor, "17 H D"], key: Float[Tensor, "17 K D"], *, windowed: bool = False
) -> str | None:
    """Compare a kernel on a few sequences of different lengths with exact attention; None: they agree.

    `windowed`: on sequences with more keys than queries too, each query with the last few keys up to its own.

    A kernel that is missing, or that a driver or an architecture refuses, raises `RuntimeError` or `AttributeError`.
    """
    ends, others, earlier = (
        torch.tensor(at, dtype=torch.int32, device=query.device)
        for at in ([0, 1, 6, 17], [0, 4, 5, 17], [0, 3, 11, 17 + 8])
    )
    within = Spans(queries=ends, keys=ends, most_queries=11, most_keys=11, causal=True)
    across = Spans(queries=ends, keys=others, most_queries=11, most_keys=12, causal=False)
    cases = [(within, key), (across, key)]
    if windowed:
        looking_back = Spans(queries=ends, keys=earlier, most_queries=11, most_keys=14, causal=True, window=4)
        cases.append((looking_back, torch.cat([key, key[:8]])))
    scaling = query.shape[-1] ** -0.5

    def computed(each: AttentionKernel, spans: Spans, keys: Tensor) -> list[Tensor]:
        seen = each.forward(query, keys, keys, spans, scaling)
        gradients = each.backward(query, (query, keys, keys), seen, spans, scaling)
        return [tensor.double() for tensor in (*seen, *gradients)]

    try:
        with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
            differences = [
                float((got - wanted).abs().max() / wanted.abs().max())
                for case in cases
                for got, wanted in zip(computed(kernel, *case), computed(DenseKernel(), *case), strict=True)
            ]
    except (RuntimeError, AttributeError) as error:
        return f"it fails here: {first_line(error)}"
    # NaN is neither within the tolerance nor the largest of numbers
    wrong = [difference for difference in differences if not difference <= PROBE_TOLERANCE]
    return f"it differs from exact attention by {max(wrong):.1g}" if wrong else None
