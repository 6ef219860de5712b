"""A model's weights in the layout and precision that the fused decoder's kernels read fastest: joined and packed.

W width of the model, V vocabulary, H query heads, K key/value heads, D head width; of one layer O outputs, I inputs.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.engines.local.attention import AttentionWeights, architecture_of, norm_eps, plans_of, rotary_of
from paceline.engines.local.experts import prepared_experts
from paceline.engines.local.mixers import StateMixer
from paceline.engines.local.operations import Kernels, Linear
from paceline.engines.local.states import StateLayer, state_layer, state_problem
from paceline.kernels.float8 import Float8Linear
from paceline.kernels.linear import ProductLinear
from paceline.kernels.logprobs import PLAIN, HeadRule
from paceline.models.experts import mixtures
from paceline.models.families import GELU, unplanned_layer
from paceline.models.families.layer_plan import LayerParts
from paceline.models.head import decoder_of

# peft's layers are recognised by their class's name: an engine needs nothing else of the library
_LORA_LINEAR = ("peft.tuners.lora.layer", "Linear")
# The other types change their frequencies with the length of the sequence.
FIXED_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
JOINED_WEIGHTS = 1 << 16
"""Elements of a weight below which a copy per call costs less than another product per step."""


def linear_problem(module: nn.Module) -> str | None:
    """Return why this module cannot be read as weight and bias; None if it can."""
    if _is_plain(module):
        return None
    layer: Any = module
    if not _is_lora(layer):
        return f"is a {type(module).__name__} of {type(module).__module__}, not a plain Linear"
    if not _is_plain(layer.base_layer):
        return f"has an adapter on a {type(layer.base_layer).__name__}, not on a plain Linear"
    if layer.lora_variant or any(layer.lora_bias.values()) or layer.merged:
        return "has an adapter that is more than the product of two matrices"
    return None


def is_adapted(module: nn.Module) -> bool:
    """Return whether the module is one of peft's."""
    return type(module).__module__.startswith("peft.")


def read_linear(module: nn.Module) -> Linear:
    """Return weight and bias: the module's own tensors if it has no active adapter.

        weight = W + sum over active adapters of (alpha / r) B A

    The sum is a new tensor in the weights' precision.
    """
    layer: Any = module
    base = layer.base_layer if _is_lora(layer) else layer
    bias = None if base.bias is None else base.bias.detach()
    weight: Float[Tensor, "O I"] = base.weight.detach()
    if base is layer or layer.disable_adapters:
        return weight, bias
    for name in layer.active_adapters:
        if name in layer.lora_A:
            left, right = layer.lora_B[name].weight.detach(), layer.lora_A[name].weight.detach()
            weight = torch.addmm(weight, left, right, alpha=layer.scaling[name])
    return weight, bias


def _is_plain(module: nn.Module) -> bool:
    return type(module) in (nn.Linear, ProductLinear)


def _is_lora(module: nn.Module) -> bool:
    return (type(module).__module__, type(module).__name__) == _LORA_LINEAR


def planned_layers(model: PreTrainedModel) -> list[tuple[Any, LayerParts]]:
    """Return the layers of a model, all of which have a plan, with the paths of their modules."""
    parts = [plan.parts for plan in plans_of(model)]
    return [(layer, part) for layer, part in zip(decoder_of(model).layers, parts, strict=False) if part is not None]


def unsupported_reason(model: PreTrainedModel) -> str | None:
    """Return why the fused decoder cannot read this model, None when it can."""
    if (reason := unplanned_layer(plans_of(model), architecture_of(model))) is not None:
        return reason
    rotary = rotary_of(decoder_of(model))
    rope_type = getattr(rotary, "rope_type", FIXED_ROPE_TYPES[0])
    for kind in rope_type.values() if isinstance(rope_type, dict) else (rope_type,):
        if kind not in FIXED_ROPE_TYPES:
            return f"rope_type is {kind!r}, not one of {', '.join(FIXED_ROPE_TYPES)}"
    layers = planned_layers(model)
    for number, (layer, parts) in enumerate(layers):
        if (reason := _part_problem(layer, parts)) is not None:
            return f"layer {number} has no plan, as {reason}"
        for path in linear_paths(layer, parts):
            problem = linear_problem(layer.get_submodule(path))
            if problem is not None:
                return f"{path} {problem}"
    paths = tuple({path for layer, parts in layers for path in linear_paths(layer, parts)})
    blocks = [layer.get_submodule(parts.experts) for layer, parts in layers if _has_experts(layer, parts)]
    by_themselves = {id(module) for block in blocks for module in block.modules()}
    for name, module in model.named_modules():  # anywhere but in the linear layers, which have been looked at
        if is_adapted(module) and not name.endswith(paths) and id(module) not in by_themselves:
            return f"{name} has an adapter that it cannot read ({type(module).__name__})"
    return None


def _part_problem(layer: nn.Module, parts: LayerParts) -> str | None:
    """Return why a part of a layer that its plan names cannot be made; None: all can."""
    if not parts.attends and (reason := state_problem(parts.mixer_kind, layer.get_submodule(parts.mixer))) is not None:
        return reason
    if _has_experts(layer, parts) and not mixtures(layer):
        return f"the experts of {parts.experts} are none by transformers' interface"
    return None


def linear_paths(layer: nn.Module, parts: LayerParts) -> tuple[str, ...]:
    """Return the paths of the linear layers that a layer has in attention and gated feed-forward layers."""
    return tuple(path for path in parts.linear if _has(layer, path))


def _has(layer: nn.Module, path: str) -> bool:
    part: Any = layer
    for name in path.split("."):
        part = getattr(part, name, None)
    return part is not None


def _has_experts(layer: nn.Module, parts: LayerParts) -> bool:
    """Return whether the layer has the plan's experts: its gated layers may stand in the same place."""
    if parts.experts is None or not _has(layer, parts.experts):
        return False
    return not (_has(layer, parts.down) and parts.down.startswith(f"{parts.experts}."))


FeedForward = Callable[[Float[Tensor, "N W"]], Float[Tensor, "N W"]]
"""Feed-forward layers: what they add to the residual stream, by its norm."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedAttention:
    """A layer's attention."""

    number: int
    """Number among the layers with attention."""
    qkv: Linear | Float8Linear
    """Queries, keys and values, concatenated: [(H + 2K) * D, W]; then the output's gates [H * D, W], if any."""
    weights: AttentionWeights
    gated: bool
    """True if there are gates."""
    output: Linear | Float8Linear


Mixer = PreparedAttention | StateMixer


@dataclass(frozen=True, kw_only=True, slots=True)
class GatedLayers:
    """Gated feed-forward layers."""

    kernels: Kernels
    gate_up: tuple[Linear | Float8Linear, ...]
    """Gate and up, or one layer with both concatenated."""
    down: Linear | Float8Linear
    gelu: bool
    """The activation is GELU by tanh; else SiLU."""

    def __call__(self, normed: Float[Tensor, "N W"]) -> Float[Tensor, "N W"]:
        """Return down(activation(gate(normed)) * up(normed))."""
        return self.kernels.linear(self.kernels.gated(normed, *self.gate_up, gelu=self.gelu), self.down)


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedBlock:
    """What reads the residual stream behind one norm, and adds to it: a layer's mixer, or its feed-forward layers.

    Norms have the residual stream's precision.
    """

    mixer: Mixer | None
    feed_forwards: tuple[FeedForward, ...]
    """What is added beside the mixer, if there is one."""
    post_norm: Float[Tensor, " W"] | None
    """Scale of the norm of what is added, if there is one."""
    multiplier: float
    """Factor of what is added."""
    next_norm: Float[Tensor, " W"] | None
    """Scale of the norm before the next block, or before the head; None: there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedWeights:
    """All weights of a model."""

    embedding: Float[Tensor, "V W"]
    """The model's own tensor, since only rows of it are read."""
    multiplier: float
    """Factor of embeddings."""
    centred: bool
    """Norms subtract the mean: then so may whatever is added, and the rest is a norm by the root mean square."""
    first_norm: Float[Tensor, " W"] | None
    blocks: tuple[PreparedBlock, ...]
    head: Linear
    norm_eps: float

    @property
    def attention(self) -> tuple[PreparedAttention, ...]:
        """Attention of each layer that has it."""
        return tuple(block.mixer for block in self.blocks if isinstance(block.mixer, PreparedAttention))

    @property
    def state_mixers(self) -> tuple[StateMixer, ...]:
        """The other mixers, in the order of their layers."""
        mixers = (block.mixer for block in self.blocks)
        return tuple(mixer for mixer in mixers if mixer is not None and not isinstance(mixer, PreparedAttention))


def prepared_weights(model: PreTrainedModel, kernels: Kernels, head: HeadRule = PLAIN) -> PreparedWeights:
    """Prepare the model's current weights, layer by layer, so that no two copies of all of them exist at a time.

    They are the model's own tensors, except where they are joined, have a LoRA adapter, or need another precision or
    oneDNN's layout. Only layers are in eight bits, not the head, which decides between tokens. The scale of the head's
    rule goes into the last norm.
    """
    decoder, numbers = decoder_of(model), itertools.count()
    plans = plans_of(model)
    # rotated numbers of a head, where the rotary module has one table for all layers
    turned = 2 * len(getattr(rotary_of(decoder), "inv_freq", ()))
    family = plans[0].family
    assert family is not None

    def scale(layer: nn.Module, path: str | None) -> Tensor | None:
        if path is None:
            return None
        weight: Tensor | None = getattr(layer.get_submodule(path), "weight", None)
        if weight is None:  # an identity in place of a norm
            return None
        weight = weight.detach().to(kernels.residual_dtype)
        return weight + family.norm_offset if family.norm_offset else weight

    read = list[tuple[nn.Module, str | None, str | None, float, Mixer | None, tuple[FeedForward, ...]]]()
    for plan, (layer, parts) in zip(plans, planned_layers(model), strict=False):
        factor = 1.0 if parts.multiplier is None else float(attrgetter(parts.multiplier)(layer))
        mixer = _mixer(layer, parts, kernels, numbers, scale, turned=turned)
        feed_forwards = _feed_forwards(layer, parts, kernels, gelu=plan.activation in GELU)
        beside = feed_forwards if parts.parallel else ()
        read.append((layer, parts.mixer_norm, parts.post_norms[0], factor, mixer, beside))
        if not parts.parallel:
            read.append((layer, parts.feed_forward_norm, parts.post_norms[1], factor, None, feed_forwards))
    last = scale(decoder, family.final_norm)
    assert last is not None
    norms = [*(scale(layer, path) for layer, path, *_ in read), last if head.scale == 1 else last * head.scale]
    blocks = [
        PreparedBlock(
            mixer=mixer,
            feed_forwards=feed_forwards,
            post_norm=scale(layer, post_norm),
            multiplier=factor,
            next_norm=next_norm,
        )
        for (layer, _, post_norm, factor, mixer, feed_forwards), next_norm in zip(read, norms[1:], strict=True)
    ]
    embedding = cast(Tensor, decoder.embed_tokens.weight).detach()
    multiplier = 1.0
    if family.embedding_multiplier is not None:  # rounded as the model rounds it
        number = attrgetter(family.embedding_multiplier)(decoder)
        multiplier = float(number.to(embedding.dtype) if isinstance(number, Tensor) else number)
    return PreparedWeights(
        embedding=embedding,
        multiplier=multiplier,
        centred=family.centred,
        first_norm=norms[0],
        blocks=tuple(blocks),
        head=kernels.prepared(_joined(kernels.dtype, [read_linear(model.get_output_embeddings())])),
        norm_eps=norm_eps(decoder),
    )


ReadScale = Callable[[nn.Module, str | None], Tensor | None]


def _mixer(
    layer: nn.Module, parts: LayerParts, kernels: Kernels, numbers: Iterator[int], scale: ReadScale, *, turned: int
) -> Mixer:
    if not parts.attends:
        return state_mixer(layer, parts, kernels)
    linear = [read_linear(layer.get_submodule(path)) for path in parts.projections]
    if parts.interleaved:
        width = cast(int, layer.get_submodule(parts.mixer).head_dim)
        linear = [*(_halves_apart(part, width, turned) for part in linear[:2]), linear[2]]
    if parts.output_gate:
        width = cast(int, layer.get_submodule(parts.mixer).head_dim)
        query, gate = (_half_of_heads(linear[0], width, half) for half in (0, 1))
        linear = [query, *linear[1:], gate]
    return PreparedAttention(
        number=next(numbers),
        qkv=kernels.projection(_joined(kernels.dtype, linear)),
        weights=AttentionWeights(
            norm=joined_qk_norm(layer, parts, scale),
            sinks=None if parts.sinks is None else attrgetter(parts.sinks)(layer).detach().to(kernels.residual_dtype),
        ),
        gated=parts.output_gate,
        output=_projection(kernels, layer.get_submodule(parts.output)),
    )


def _halves_apart(layer: Linear, width: int, turned: int) -> Linear:
    """Return a layer whose heads have the first of each two rotated outputs in front: scores stay as they are."""
    weight, bias = (None if part is None else part.unflatten(0, (-1, width)) for part in layer)
    assert weight is not None
    places = torch.arange(width, device=weight.device)
    order = torch.cat((places[:turned].view(-1, 2).T.flatten(), places[turned:]))
    return weight[:, order].flatten(0, 1), None if bias is None else bias[:, order].flatten(0, 1)


def _half_of_heads(layer: Linear, width: int, half: int) -> Linear:
    """Return the first or the second of two layers whose heads lie beside each other."""
    weight, bias = (
        None if part is None else part.unflatten(0, (-1, 2, width))[:, half].flatten(0, 1) for part in layer
    )
    assert weight is not None
    return weight, bias


def _feed_forwards(layer: nn.Module, parts: LayerParts, kernels: Kernels, *, gelu: bool) -> tuple[FeedForward, ...]:
    gated = (_gated_layers(layer, parts, kernels, gelu=gelu),) if _has(layer, parts.down) else ()
    if parts.experts is None or not _has_experts(layer, parts):
        return gated
    return (*gated, prepared_experts(layer.get_submodule(parts.experts), kernels))


def _gated_layers(layer: nn.Module, parts: LayerParts, kernels: Kernels, *, gelu: bool) -> GatedLayers:
    modules = [layer.get_submodule(path) for path in parts.gate_up]
    weight = cast(Tensor, modules[0].weight)
    copies = kernels.packs or kernels.float8 or kernels.dtype != weight.dtype or weight.numel() < JOINED_WEIGHTS
    groups = (modules,) if copies else tuple([module] for module in modules)
    gate_up = tuple(_projection(kernels, *group) for group in groups)
    down = _projection(kernels, layer.get_submodule(parts.down))
    return GatedLayers(kernels=kernels, gate_up=gate_up, down=down, gelu=gelu)


def _projection(kernels: Kernels, *modules: nn.Module) -> Linear | Float8Linear:
    return kernels.projection(_joined(kernels.dtype, [read_linear(module) for module in modules]))


def _joined(dtype: torch.dtype, layers: Sequence[Linear]) -> Linear:
    """Concatenate layers of one input, all with or all without bias; a single layer is not copied."""
    biases = [bias for _, bias in layers if bias is not None]
    weight = _below_each_other([weight for weight, _ in layers], dtype)
    return weight, _below_each_other(biases, dtype) if biases else None


def _below_each_other(
    parts: Sequence[Float[Tensor, "O *I"]],  # noqa: F821 - dimensions
    dtype: torch.dtype,
) -> Float[Tensor, "Os *I"]:  # noqa: F821
    if len(parts) == 1:
        return parts[0].to(dtype)
    sizes = [len(part) for part in parts]
    whole = parts[0].new_empty(sum(sizes), *parts[0].shape[1:], dtype=dtype)
    for rows, part in zip(whole.split(sizes), parts, strict=True):
        rows.copy_(part)
    return whole


def joined_qk_norm(layer: nn.Module, parts: LayerParts, scale: ReadScale) -> Float[Tensor, "H+K D"] | None:
    """Return the scales of the norms over query and key heads, one for each head; None where there are none."""
    if parts.head_norms is None:
        return None
    width, scales = cast(int, layer.get_submodule(parts.mixer).head_dim), list[Tensor]()
    for norm, projection in zip(parts.head_norms, parts.projections, strict=False):
        outputs = cast(int, layer.get_submodule(projection).out_features)
        if parts.output_gate and not scales:
            outputs //= 2
        weight = scale(layer, norm)
        assert weight is not None
        # one norm over each head, or one over all of them
        scales.append(weight.view(-1, width).expand(outputs // width, width))
    return torch.cat(scales)


def state_mixer(layer: nn.Module, parts: LayerParts, kernels: Kernels) -> StateLayer:
    """Prepare a layer's mixer that keeps a state."""
    inputs, output = (
        _joined(kernels.dtype, [read_linear(layer.get_submodule(path)) for path in paths])
        for paths in (parts.projections, (parts.output,))
    )
    return state_layer(parts.mixer_kind, layer.get_submodule(parts.mixer), inputs, output, kernels)
