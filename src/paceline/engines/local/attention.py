"""The interface between a layer and its attention, which owns the cache of keys and values.

S rows, P prompts, L prompt length, H query heads, K key/value heads, D head width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from paceline.engines.local.operations import rms_norm
from paceline.kernels.cpu.decoding import Heads
from paceline.models.families import layer_plans


@dataclass(frozen=True, kw_only=True, slots=True)
class Rotation:
    """Rotary embedding as tables over positions: x * cosine + roll(x, D / 2) * sine."""

    cosine: Float[Tensor, "L D"]
    sine: Float[Tensor, "L D"]
    """Sines, negated in the first half."""
    norm_eps: float
    """Epsilon of the norm over each query and key head before the rotation, if a layer has one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What the layers keep of the first tokens of a row."""

    length: int
    """Number of tokens."""
    layers: tuple[tuple[Tensor, ...], ...]
    """Rotated keys, and values [K, C, D], of each layer with attention; then the states of each other layer."""

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return sum(tensor.nbytes for layer in self.layers for tensor in layer)

    def until(self, length: int) -> "Context":
        """Return the first tokens, which cannot be fewer where a layer keeps a state."""
        if length == self.length:
            return self
        layers = tuple(tuple(tensor[:, :length] for tensor in layer) for layer in self.layers)
        return Context(length=length, layers=layers)


class SharedAttention(Protocol):
    """Attention of rows that share prompts, and its cache. Knows rows and slots; nothing of weights."""

    def take_slots(self, prompt_lengths: Sequence[int], rows: Sequence[Sequence[int]]) -> Int[Tensor, " P"]:
        """Return a free slot for each prompt, with room for its keys; `rows[i]` continue prompt i."""

    def of_prompts(
        self, qkv: Float[Tensor, "P L (H+2K)*D"], layer: int, norm: Tensor | None, slots: Int[Tensor, " Q"], known: int
    ) -> Float[Tensor, "P L-known H*D"]:
        """Compute causal attention within right-padded prompts; store keys and values of the first Q prompts.

        The first `known` tokens of each prompt have no output. `norm` [H+K, D] scales the norm of query and key heads,
        if any.
        """

    def begin_step(self) -> None:
        """Prepare a step, which adds a token to every row."""

    def of_step(self, qkv: Float[Tensor, "S (H+2K)*D"], layer: int, norm: Tensor | None) -> Float[Tensor, "S H*D"]:
        """Attend from each row's new token to its prompt and own tokens, itself included; valid until the next call."""

    def end_step(self) -> None:
        """Finish a step, in which all layers have been computed."""

    def release(self, rows: Sequence[int]) -> None:
        """Free rows whose completions have ended."""

    def park(self, rows: Sequence[int]) -> list[Context]:
        """Copy keys and values of these rows: of their prompts and own tokens."""

    def resume(self, contexts: Sequence[Context], rows: Sequence[int]) -> None:
        """Let each of these free rows continue a parked context, whose first layers are those with attention."""

    def compact(self, keep: Int[Tensor, " R"], alive: int) -> None:
        """Keep these rows in this order, and the prompts that they need; the first `alive` of them are in use.

        Behind those, `keep` may repeat rows. None need be alive if prompts or contexts follow at once.
        """


MOST_MASKED = 1 << 24
"""Largest number of elements of a mask over tokens behind known ones: 16 MiB, and four times as much within torch. The
flag for causal attention needs no mask, but computes the known tokens too; fast kernels of a GPU take only the flag."""


def rotated(
    qk: Float[Tensor, "... H+K D"], norm: Tensor | None, eps: float, cosine: Tensor, sine: Tensor
) -> Float[Tensor, "... H+K D"]:
    """Rotate query and key heads by their positions, after a norm if `norm` has a scale for each head."""
    if norm is not None:
        qk = rms_norm(qk, norm, eps)
    return torch.mul(qk, cosine).addcmul_(qk.roll(qk.shape[-1] // 2, -1), sine)


def causal_attention(qkv: Float[Tensor, "P L H+2K D"], heads: Heads, known: int) -> Float[Tensor, "P L-known H*D"]:
    """Compute causal attention from rotated queries and keys, of all tokens but the first `known` of each prompt."""
    query, key, value = qkv.transpose(1, 2).split((heads.query, heads.kv, heads.kv), dim=1)
    length = qkv.shape[1]
    new = length - known
    if qkv.device.type == "cpu" and new < known and new * length <= MOST_MASKED:
        mask = qkv.new_ones(new, length, dtype=torch.bool).tril(known)
        mixed = F.scaled_dot_product_attention(query[:, :, known:], key, value, attn_mask=mask, enable_gqa=True)
    else:
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)[:, :, known:]
    return mixed.transpose(1, 2).flatten(2)


def heads_of(model: PreTrainedModel) -> Heads:
    """Return the heads of a model's layers, which are the same in all of them."""
    plan = layer_plans(model.config)[0]
    return Heads(query=plan.query_heads, kv=plan.key_value_heads, width=plan.head_dim)


def rotation_of(model: PreTrainedModel, length: int, like: Tensor) -> Rotation:
    """Make tables of `length` positions by the model's own rotary module, in `like`'s dtype and device."""
    positions = torch.arange(length, device=like.device)[None]
    cosine, sine = model.model.rotary_emb(like, positions)
    half = sine.shape[-1] // 2
    signed = torch.cat((-sine[0, :, :half], sine[0, :, half:]), dim=-1)
    return Rotation(cosine=cosine[0].contiguous(), sine=signed, norm_eps=model.config.rms_norm_eps)
