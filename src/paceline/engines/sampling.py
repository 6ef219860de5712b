"""Drawing tokens: counter-based uniform numbers, truncation, inverse cumulative distribution.

S rows, V vocabulary. A uniform number is a hash of (key of the completion, position in the completion), so a draw
depends on nothing else: not on its neighbours, its row, or a generator's state. `engines.sample_key` makes the keys;
positions count sampled tokens from 0.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from paceline.engines import Sampling
from paceline.kernels.cpu.compiling import STORAGE
from paceline.kernels.cpu.decoding import decoding_kernels
from paceline.kernels.cuda.drawing import draw_tokens, drawing_problem

# Constants of splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def as_signed_64(value: int) -> int:
    """Return the int64 with the same 64 bits: torch multiplies and adds int64 modulo 2^64."""
    return (value & (2**64 - 1)) - ((value & 2**63) << 1)


def _shift_right(bits: Tensor, count: int) -> Tensor:
    # Tensor >> int64 copies the sign bit; the mask makes the shift logical.
    return (bits >> count) & ((1 << (64 - count)) - 1)


def uniforms(keys: Int[Tensor, "*shape"], positions: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return a float64 in (0, 1) for each (key, position), with 50 random bits: output `position` of splitmix64(key).

    50 bits keep `u * total < total` true in float64, so that an inverse cumulative sum never runs off its end.
    """
    bits = keys + (positions + 1) * as_signed_64(_GOLDEN_GAMMA)
    bits = (bits ^ _shift_right(bits, 30)) * as_signed_64(_MIX_1)
    bits = (bits ^ _shift_right(bits, 27)) * as_signed_64(_MIX_2)
    bits = bits ^ _shift_right(bits, 31)
    return (_shift_right(bits, 14).double() + 0.5) * 2.0**-50


def draw(
    logits: Float[Tensor, "S V"], uniform: Float[Tensor, " S"], sampling: Sampling
) -> tuple[Int[Tensor, " S"], Float[Tensor, " S"]]:
    """Draw one token per row; return it and its logprob in nats.

    The logprob is of the distribution that was drawn from: softmax(logits / temperature), renormalised over the
    kept tokens under truncation. At temperature 0 the most probable token is taken, its logprob is at temperature 1.
    """
    temperature = sampling.temperature
    truncates = sampling.top_p < 1 or 0 < sampling.top_k < logits.shape[-1] or sampling.min_p > 0
    if temperature > 0 and truncates:
        logits, temperature = truncated(_scaled(logits, temperature), sampling), 1.0
    return _fastest_draw(logits)(logits.contiguous(), uniform.contiguous(), temperature)


def _fastest_draw(logits: Tensor) -> Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]:
    """Return a function of logits, uniform numbers and temperature: in C on a CPU, in Triton on CUDA, else torch's."""
    native = decoding_kernels() if logits.is_cpu and logits.dtype in STORAGE else None
    if native is not None:
        return native.draw
    if logits.is_cuda and drawing_problem(logits.device, logits.dtype) is None:
        return draw_tokens
    return _torch_draw


def _torch_draw(logits: Tensor, uniform: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    if temperature == 0:
        scores = _scaled(logits, 1.0)
        tokens = scores.argmax(-1)
        top = scores.gather(1, tokens[:, None]).squeeze(1)
        return tokens, top - scores.logsumexp(-1)
    probs = _scaled(logits, temperature).softmax(-1)
    tokens = _inverse_cdf(probs, uniform)
    return tokens.squeeze(1), probs.gather(1, tokens).squeeze(1).log()


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    """Return logits / temperature, in float32 at least."""
    scores = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    return scores if temperature == 1 else scores / temperature


def draw_each(
    logits: Float[Tensor, "S V"], uniform: Float[Tensor, " S"], samplings: Sequence[Sampling]
) -> tuple[Int[Tensor, " S"], Float[Tensor, " S"]]:
    """Draw one token per row by its own `Sampling`; see `draw`."""
    rows_of = dict[Sampling, list[int]]()
    for row, sampling in enumerate(samplings):
        rows_of.setdefault(sampling, []).append(row)
    if len(rows_of) == 1:
        return draw(logits, uniform, samplings[0])
    parts = [torch.tensor(rows, device=logits.device) for rows in rows_of.values()]
    drawn = [
        draw(logits.index_select(0, rows), uniform.index_select(0, rows), sampling)
        for rows, sampling in zip(parts, rows_of, strict=True)
    ]
    back = torch.cat(parts).argsort()
    tokens, logprobs = (torch.cat(column).index_select(0, back) for column in zip(*drawn, strict=True))
    return tokens, logprobs


def truncated(scores: Float[Tensor, "S V"], sampling: Sampling) -> Float[Tensor, "S V"]:
    """Return `scores` (logits / temperature) with -inf at tokens that top-k, top-p and min-p exclude, in this order.

    top-k keeps the k highest; top-p the fewest of these whose renormalised probabilities reach `top_p`; min-p those
    with at least `min_p` times the top token's probability. Of equal scores at a border either may be kept.
    """
    if sampling.top_p < 1 or 0 < sampling.top_k < scores.shape[-1]:
        kept = min(sampling.top_k or scores.shape[-1], scores.shape[-1])
        ordered, token_ids = scores.topk(kept, dim=-1) if sampling.top_k else scores.sort(dim=-1, descending=True)
        if sampling.top_p < 1:
            probs = ordered.softmax(-1)
            mass_before = probs.cumsum(-1, dtype=torch.float64) - probs
            ordered = ordered.masked_fill(mass_before >= sampling.top_p, -torch.inf)
        scores = torch.full_like(scores, -torch.inf).scatter_(1, token_ids, ordered)
    if sampling.min_p > 0:
        probs = scores.softmax(-1)
        scores = scores.masked_fill(probs < sampling.min_p * probs.amax(-1, keepdim=True), -torch.inf)
    return scores


def _inverse_cdf(probs: Float[Tensor, "S V"], uniform: Float[Tensor, " S"]) -> Int[Tensor, "S 1"]:
    """Return the first token whose cumulative probability passes `uniform`, never one of probability 0.

    In two levels, blocks of tokens and then tokens of one block: the long cumulative sum over the vocabulary is the
    slowest operation of a draw, and its float32 rounding would grow with the vocabulary.
    """
    # about the square root; a divisor where there is one nearby, since padding copies the whole table
    vocabulary = probs.shape[1]
    root = max(1, int(vocabulary**0.5))
    size = next((size for size in range(root, min(4 * root, vocabulary) + 1) if vocabulary % size == 0), root)
    padding = -probs.shape[1] % size
    blocks = (F.pad(probs, (0, padding)) if padding else probs).view(probs.shape[0], -1, size)
    # A product with ones is torch's fastest sum over a short last dimension.
    mass = blocks.matmul(probs.new_ones(size)).double()
    ends = mass.cumsum(-1)
    target = uniform[:, None] * ends[:, -1:]
    # The clamps only act on logits that are not numbers: the caller reports those, the index must stay valid.
    block = torch.searchsorted(ends, target, right=True).clamp_(max=blocks.shape[1] - 1)
    inner = blocks.gather(1, block[:, :, None].expand(-1, 1, size)).squeeze(1).cumsum(-1, dtype=torch.float64)
    rest = target - ends.gather(1, block) + mass.gather(1, block)
    rest = torch.minimum(rest.clamp_(min=0), inner[:, -1:] * (1 - 2.0**-50))
    offset = torch.searchsorted(inner, rest, right=True).clamp_(max=size - 1)
    return block * size + offset
