"""The interface between a layer and its attention, which owns the cache of keys and values.

S rows, P prompts, L prompt length, H query heads, K key/value heads, D head width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from paceline.engines.local.operations import rms_norm
from paceline.kernels.cpu.decoding import Heads
from paceline.models.dense_attention import dense_attention
from paceline.models.families import layer_plans
from paceline.models.families.layer_plan import LayerPlan
from paceline.models.head import decoder_of


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rotation:
    """Rotary embedding of a head's first R numbers as tables over positions: x * cosine + roll(x, R / 2) * sine."""

    cosine: Float[Tensor, "L R"]
    sine: Float[Tensor, "L R"]
    """Sines, negated in the first half."""
    norm_eps: float
    """Epsilon of the norm over each query and key head before the rotation, if a layer has one."""


Turns = tuple[Float[Tensor, "P L 1 R"], Float[Tensor, "P L 1 R"]]
"""Cosines and sines of each token's position in each prompt, as those of `Rotation`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionLayer:
    """What a layer's attention computes, whatever its weights are."""

    rotation: Rotation
    """The same object for layers that are rotated alike."""
    window: int | None = None
    """A token sees so many, itself included; None: all earlier ones."""
    scaling: float | None = None
    """Factor of the scores; None: 1 / sqrt(D)."""
    cap: float | None = None
    """Cap of the scores."""
    joint_norms: bool = False
    """Norms are over all query heads together, and over all key heads."""
    query_scales: Float[Tensor, " L"] | None = None
    """Factors of queries by their position."""

    @property
    def is_plain(self) -> bool:
        """True if every token sees all earlier ones, with scores of the usual size and without a cap."""
        return self.window is None and self.scaling is None and self.cap is None


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionWeights:
    """What attention reads of a layer's weights, between its products."""

    norm: Float[Tensor, "H+K D"] | None = None
    """Scale of the norm of queries and keys, head by head, where there is one."""
    sinks: Float[Tensor, " H"] | None = None
    """Score of one more key for each head, whose value is 0."""


NO_WEIGHTS = AttentionWeights()


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What the layers keep of the first tokens of a row."""

    length: int
    """Number of tokens."""
    layers: tuple[tuple[Tensor, ...], ...]
    """Rotated keys, and values [K, C, D], of each layer with attention; then the states of each other layer."""
    shift: int = 0
    """How far the position of a later token is from its number: images have fewer positions than tokens."""

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return sum(tensor.nbytes for layer in self.layers for tensor in layer)

    def until(self, length: int) -> "Context":
        """Return the first tokens, which cannot be fewer where a layer keeps a state."""
        if length == self.length:
            return self
        layers = tuple(tuple(tensor[:, :length] for tensor in layer) for layer in self.layers)
        return Context(length=length, layers=layers, shift=self.shift)


class SharedAttention(Protocol):
    """Attention of rows that share prompts, and its cache. Knows rows and slots; nothing of weights."""

    def take_slots(
        self, prompt_lengths: Sequence[int], rows: Sequence[Sequence[int]], shifts: Sequence[int] | None = None
    ) -> Int[Tensor, " P"]:
        """Return a free slot for each prompt, with room for its keys; `rows[i]` continue prompt i.

        `shifts` are added to the numbers of tokens behind each prompt to rotate them; None: nothing is.
        """

    def of_prompts(
        self,
        qkv: Float[Tensor, "P L (H+2K)*D"],
        layer: int,
        weights: AttentionWeights,
        slots: Int[Tensor, " Q"],
        known: int,
        turns: Turns | None = None,
    ) -> Float[Tensor, "P L-known H*D"]:
        """Compute causal attention within right-padded prompts; store keys and values of the first Q prompts.

        The first `known` tokens of each prompt have no output. `turns` rotate each token; None: its number does.
        """

    def begin_step(self) -> None:
        """Prepare a step, which adds a token to every row."""

    def of_step(
        self, qkv: Float[Tensor, "S (H+2K)*D"], layer: int, weights: AttentionWeights
    ) -> Float[Tensor, "S H*D"]:
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


QUERIES_AT_ONCE = 256
"""Tokens of prompts whose scores are computed together where a layer has a window, a cap or sinks."""


def turned_heads(
    qk: Float[Tensor, "... H+K D"],
    heads: Heads,
    layer: AttentionLayer,
    norm: Tensor | None,
    turn: tuple[Tensor, Tensor],
) -> Float[Tensor, "... H+K D"]:
    """Rotate query and key heads by cosines and sines of their positions, after a norm if `norm` has scales."""
    if norm is not None and layer.joint_norms:
        sides = zip(qk.split((heads.query, heads.kv), dim=-2), norm.split((heads.query, heads.kv)), strict=True)
        normed = [rms_norm(side.flatten(-2), scale.flatten(), layer.rotation.norm_eps) for side, scale in sides]
        qk, norm = torch.cat(normed, dim=-1).unflatten(-1, (-1, heads.width)), None
    return rotated(qk, norm, layer.rotation.norm_eps, *turn)


def rotated(
    qk: Float[Tensor, "... H+K D"], norm: Tensor | None, eps: float, cosine: Tensor, sine: Tensor
) -> Float[Tensor, "... H+K D"]:
    """Rotate a head's first numbers, as many as the tables have, after a norm if `norm` has a scale for each head."""
    if norm is not None:
        qk = rms_norm(qk, norm, eps)
    width = cosine.shape[-1]
    turning = qk[..., :width]
    turned = torch.mul(turning, cosine).addcmul_(turning.roll(width // 2, -1), sine) if width else turning
    return turned if width == qk.shape[-1] else torch.cat((turned, qk[..., width:]), dim=-1)


def causal_attention(
    qkv: Float[Tensor, "P L H+2K D"],
    heads: Heads,
    known: int,
    layer: AttentionLayer | None = None,
    sinks: Tensor | None = None,
) -> Float[Tensor, "P L-known H*D"]:
    """Compute causal attention from rotated queries and keys, of all tokens but the first `known` of each prompt."""
    query, key, value = qkv.transpose(1, 2).split((heads.query, heads.kv, heads.kv), dim=1)
    length = qkv.shape[1]
    new = length - known
    if sinks is not None or not (layer is None or layer.is_plain):
        assert layer is not None
        mixed = _in_blocks(query, key, value, known, layer, sinks)
    elif qkv.device.type == "cpu" and new < known and new * length <= MOST_MASKED:
        mask = qkv.new_ones(new, length, dtype=torch.bool).tril(known)
        mixed = F.scaled_dot_product_attention(query[:, :, known:], key, value, attn_mask=mask, enable_gqa=True)
    else:
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)[:, :, known:]
    return mixed.transpose(1, 2).flatten(2)


def _in_blocks(
    query: Tensor, key: Tensor, value: Tensor, known: int, layer: AttentionLayer, sinks: Tensor | None
) -> Float[Tensor, "P H L-known D"]:
    """Attend some queries at a time, each block over the keys that it sees."""
    parts, scaling = list[Tensor](), layer.scaling or query.shape[-1] ** -0.5
    for first in range(known, query.shape[2], QUERIES_AT_ONCE):
        last = min(first + QUERIES_AT_ONCE, query.shape[2])
        start = 0 if layer.window is None else max(0, first - layer.window + 1)
        ages = torch.arange(first, last, device=query.device)[:, None] - torch.arange(start, last, device=query.device)
        mask = (ages >= 0) if layer.window is None else (ages >= 0) & (ages < layer.window)
        some = query[:, :, first:last], key[:, :, start:last], value[:, :, start:last]
        if layer.cap is None and sinks is None:
            parts.append(F.scaled_dot_product_attention(*some, attn_mask=mask, scale=scaling, enable_gqa=True))
        else:
            parts.append(dense_attention(*some, mask[None, None], scaling, layer.cap, sinks))
    return torch.cat(parts, dim=2)


def architecture_of(model: PreTrainedModel) -> str:
    """Return the class by which a model's layers are known; where it reads images, its language model's."""
    if model.config.get_text_config() is model.config:
        return type(model).__name__
    return f"{type(decoder_of(model)).__name__.removesuffix('Model').removesuffix('Text')}ForCausalLM"


def plans_of(model: PreTrainedModel) -> tuple[LayerPlan, ...]:
    """Return the plans of a model's layers."""
    return layer_plans(model.config.get_text_config(), architecture_of(model))


def heads_of(model: PreTrainedModel) -> Heads:
    """Return the heads of a model's layers, which are the same in all of them."""
    plan = plans_of(model)[0]
    return Heads(query=plan.query_heads, kv=plan.key_value_heads, width=plan.head_dim)


def attention_layers(model: PreTrainedModel, length: int, like: Tensor) -> list[AttentionLayer]:
    """Describe the attention of the layers that have it, with tables of `length` positions.

    The tables are made by the model's own rotary module, in `like`'s dtype and device.
    """
    decoder, width = decoder_of(model), heads_of(model).width
    plans = plans_of(model)
    rotations, layers = dict[str, Rotation](), list[AttentionLayer]()
    for layer, plan in zip(decoder.layers, plans, strict=False):
        parts = plan.parts
        if parts is None or not parts.attends:
            continue
        kind = plan.kind if parts.rotates is None or attrgetter(parts.rotates)(layer) else ""
        if kind not in rotations:
            rotations[kind] = _rotation(decoder, kind, length, like)
        scaling = float(layer.get_submodule(parts.mixer).scaling)
        layers.append(
            AttentionLayer(
                rotation=rotations[kind],
                window=None if plan.window is None or plan.window >= length else plan.window,
                scaling=None if scaling == width**-0.5 else scaling,
                cap=None if parts.cap is None else attrgetter(parts.cap)(layer),
                joint_norms=parts.head_norms is not None
                and layer.get_submodule(parts.head_norms[0]).weight.numel() > width,
                query_scales=_query_scales(decoder.config.rope_parameters, length, like) if parts.query_scale else None,
            )
        )
    return layers


def _rotation(decoder: Any, kind: str, length: int, like: Tensor) -> Rotation:
    """Make tables by the decoder's rotary module, for layers of this kind where it asks; "": nothing is rotated.

    The module's own may have each number twice, for both halves or for neighbours, or once.
    """
    rotary, eps = rotary_of(decoder), norm_eps(decoder)
    if not kind or rotary is None:
        nothing = like.new_zeros(length, 0)
        return Rotation(cosine=nothing, sine=nothing, norm_eps=eps)
    by_kind = (kind,) if isinstance(rotary.rope_type, dict) else ()
    cosine, sine = (table[0] for table in rotary_tables(rotary, torch.arange(length)[None], like, *by_kind))
    return Rotation(cosine=cosine.contiguous(), sine=sine, norm_eps=eps)


def rotary_tables(
    rotary: Any, positions: Int[Tensor, "*A P L"], like: Tensor, *by_kind: str
) -> tuple[Float[Tensor, "P L R"], Float[Tensor, "P L R"]]:
    """Return cosines and sines of positions by a model's rotary module, as `Rotation` has them, in `like`'s precision.

    Positions may have several axes, which the module then mixes.
    """
    cosine, sine = rotary(like, positions.to(like.device), *by_kind)
    half = sine.shape[-1] // 2
    if not torch.equal(sine[..., :half], sine[..., half:]):
        step = 2 if torch.equal(sine[..., ::2], sine[..., 1::2]) else 1
        cosine, sine, half = cosine[..., ::step].repeat(1, 1, 2), sine[..., ::step].repeat(1, 1, 2), 2 * half // step
    return cosine, torch.cat((-sine[..., :half], sine[..., half:]), dim=-1)


def _query_scales(parameters: Mapping[str, Any], length: int, like: Tensor) -> Float[Tensor, " L"] | None:
    """Return 1 + beta * log(1 + floor(position / original length)), which Ministral 3 multiplies queries by."""
    beta = parameters.get("llama_4_scaling_beta")
    if beta is None:
        return None
    positions = torch.arange(length, device=like.device)
    scales: Tensor = 1 + beta * torch.log(1 + torch.floor(positions / parameters["original_max_position_embeddings"]))
    return scales.to(like.dtype)


def rotary_of(decoder: Any) -> Any:
    """Return a decoder's rotary module, whatever its name; None: it has none of its own."""
    return next((module for module in decoder.children() if type(module).__name__.endswith("RotaryEmbedding")), None)


def norm_eps(decoder: Any) -> float:
    """Return what a decoder's norms add to the mean square, by its last one."""
    norm = next(module for module in reversed(list(decoder.children())) if type(module).__name__.endswith("Norm"))
    return float(norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps)
