"""A model's weights in the layout and precision that the fused decoder's kernels read fastest: joined and packed.

W width of the model, V vocabulary, H query heads, K key/value heads, D head width; of one layer O outputs, I inputs.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.engines.local.experts import prepared_experts
from paceline.engines.local.mixers import StateMixer
from paceline.engines.local.operations import Kernels, Linear
from paceline.kernels.float8 import ALIGNED, Float8Linear, quantized
from paceline.kernels.linear import ProductLinear
from paceline.models.experts import mixtures
from paceline.models.families import layer_plans, unplanned_layer
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
    parts = [plan.parts for plan in layer_plans(model.config, type(model).__name__)]
    return [(layer, part) for layer, part in zip(decoder_of(model).layers, parts, strict=False) if part is not None]


def unsupported_reason(model: PreTrainedModel) -> str | None:
    """Return why the fused decoder cannot read this model, None when it can."""
    name = type(model).__name__
    if (reason := unplanned_layer(layer_plans(model.config, name), name)) is not None:
        return reason
    rotary = getattr(decoder_of(model), "rotary_emb", None)
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
    if not parts.attends and parts.mixer_kind not in STATE_MIXERS:
        return f"its mixer of the kind {parts.mixer_kind} is not among those that the engine computes"
    if _has_experts(layer, parts) and not mixtures(layer):
        return f"the experts of {parts.experts} are none by transformers' interface"
    return None


def linear_paths(layer: nn.Module, parts: LayerParts) -> tuple[str, ...]:
    """Return the paths of the linear layers that a layer has in attention and gated feed-forward layers."""
    return tuple(path for path in parts.linear if _has(layer, path))


def _has(layer: nn.Module, path: str) -> bool:
    return functools.reduce(lambda module, name: getattr(module, name, None), path.split("."), layer) is not None


def _has_experts(layer: nn.Module, parts: LayerParts) -> bool:
    """Return whether the layer has the plan's experts: its gated layers may stand in the same place."""
    if parts.experts is None or not _has(layer, parts.experts):
        return False
    return not (_has(layer, parts.down) and parts.down.startswith(f"{parts.experts}."))


def unaligned_reason(model: PreTrainedModel) -> str | None:
    """Return why the layers of a model that the fused decoder reads cannot be multiplied in eight bits on CUDA."""
    for layer, parts in planned_layers(model):
        for path in linear_paths(layer, parts):
            linear: Any = layer.get_submodule(path)
            sides = linear.in_features, linear.out_features
            if any(side % ALIGNED for side in sides):
                return f"{path} is {sides[0]} by {sides[1]}, and both must be multiples of {ALIGNED}"
    return None


@contextlib.contextmanager
def rounded_layers(model: PreTrainedModel) -> Iterator[None]:
    """Within the context, the model's own forward pass multiplies its layers in eight bits, by torch's operations.

    The fused decoder in eight bits is compared with this, as the unrounded model may differ from both.
    """

    def product(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        weight, bias = read_linear(module)
        dtype, rows = output.dtype, inputs[0]
        numbers, scale = quantized(rows.to(dtype).flatten(0, -2))
        of_outputs, scales = quantized(weight.to(dtype))
        sums = F.linear(numbers.to(dtype), of_outputs.to(dtype)).float() * scale * scales.T
        result: Tensor = (sums if bias is None else sums + bias).to(dtype)
        return result.view(*rows.shape[:-1], result.shape[-1])

    linear = [
        layer.get_submodule(path) for layer, parts in planned_layers(model) for path in linear_paths(layer, parts)
    ]
    hooks = [module.register_forward_hook(product) for module in linear]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


FeedForward = Callable[[Float[Tensor, "N W"]], Float[Tensor, "N W"]]
"""Feed-forward layers: what they add to the residual stream, by its norm."""
STATE_MIXERS: Mapping[str, Callable[[nn.Module, Kernels], StateMixer]] = {}
"""What makes each kind of mixer with a state from the layer's module."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedAttention:
    """A layer's attention."""

    number: int
    """Number among the layers with attention."""
    qkv: Linear | Float8Linear
    """Queries, keys and values, concatenated: [(H + 2K) * D, W]."""
    qk_norm: Float[Tensor, "H+K D"] | None
    """Scale of the norm over each query and key head, where the architecture has one."""
    output: Linear | Float8Linear


Mixer = PreparedAttention | StateMixer


@dataclass(frozen=True, kw_only=True, slots=True)
class GatedLayers:
    """Gated feed-forward layers."""

    kernels: Kernels
    gate_up: tuple[Linear | Float8Linear, ...]
    """Gate and up, or one layer with both concatenated."""
    down: Linear | Float8Linear

    def __call__(self, normed: Float[Tensor, "N W"]) -> Float[Tensor, "N W"]:
        """Return down(activation(gate(normed)) * up(normed))."""
        return self.kernels.linear(self.kernels.gated(normed, *self.gate_up), self.down)


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedBlock:
    """What reads the residual stream behind one norm, and adds to it: a layer's mixer, or its feed-forward layers.

    Norms have the residual stream's precision.
    """

    mixer: Mixer | None
    feed_forwards: tuple[FeedForward, ...]
    """What is added beside the mixer, if there is one."""
    next_norm: Float[Tensor, " W"]
    """Scale of the norm before the next block, or before the head."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedWeights:
    """All weights of a model."""

    embedding: Float[Tensor, "V W"]
    """The model's own tensor, since only rows of it are read."""
    first_norm: Float[Tensor, " W"]
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


def prepared_weights(model: PreTrainedModel, kernels: Kernels) -> PreparedWeights:
    """Prepare the model's current weights, layer by layer, so that no two copies of all of them exist at a time.

    They are the model's own tensors, except where they are joined, have a LoRA adapter, or need another precision or
    oneDNN's layout. Only layers are in eight bits, not the head, which decides between tokens.
    """
    decoder, numbers = decoder_of(model), itertools.count()
    read = list[tuple[nn.Module, Mixer | None, tuple[FeedForward, ...]]]()
    for layer, parts in planned_layers(model):
        read.append((layer.get_submodule(parts.mixer_norm), _mixer(layer, parts, kernels, numbers), ()))
        read.append((layer.get_submodule(parts.feed_forward_norm), None, _feed_forwards(layer, parts, kernels)))
    family = layer_plans(model.config, type(model).__name__)[0].family
    assert family is not None
    final = decoder.get_submodule(family.final_norm)
    scales = [
        cast(Any, norm).weight.detach().to(kernels.residual_dtype) for norm in [*(norm for norm, _, _ in read), final]
    ]
    blocks = [
        PreparedBlock(mixer=mixer, feed_forwards=feed_forwards, next_norm=next_norm)
        for (_, mixer, feed_forwards), next_norm in zip(read, scales[1:], strict=True)
    ]
    return PreparedWeights(
        embedding=decoder.embed_tokens.weight.detach(),
        first_norm=scales[0],
        blocks=tuple(blocks),
        head=kernels.prepared(_joined(kernels.dtype, model.get_output_embeddings())),
        norm_eps=norm_eps(final),
    )


def _mixer(layer: nn.Module, parts: LayerParts, kernels: Kernels, numbers: Iterator[int]) -> Mixer:
    if not parts.attends:
        return STATE_MIXERS[parts.mixer_kind](layer.get_submodule(parts.mixer), kernels)
    return PreparedAttention(
        number=next(numbers),
        qkv=_projection(kernels, *map(layer.get_submodule, parts.projections)),
        qk_norm=joined_qk_norm(layer, parts, kernels.residual_dtype),
        output=_projection(kernels, layer.get_submodule(parts.output)),
    )


def _feed_forwards(layer: nn.Module, parts: LayerParts, kernels: Kernels) -> tuple[FeedForward, ...]:
    gated = (_gated_layers(layer, parts, kernels),) if _has(layer, parts.down) else ()
    if parts.experts is None or not _has_experts(layer, parts):
        return gated
    return (*gated, prepared_experts(layer.get_submodule(parts.experts), kernels))


def _gated_layers(layer: nn.Module, parts: LayerParts, kernels: Kernels) -> GatedLayers:
    modules = [layer.get_submodule(path) for path in parts.gate_up]
    weight = cast(Tensor, modules[0].weight)
    copies = kernels.packs or kernels.float8 or kernels.dtype != weight.dtype or weight.numel() < JOINED_WEIGHTS
    groups = (modules,) if copies else tuple([module] for module in modules)
    gate_up = tuple(_projection(kernels, *group) for group in groups)
    return GatedLayers(kernels=kernels, gate_up=gate_up, down=_projection(kernels, layer.get_submodule(parts.down)))


def norm_eps(norm: Any) -> float:
    """Return what a norm adds to the mean square."""
    return float(norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps)


def _projection(kernels: Kernels, *modules: nn.Module) -> Linear | Float8Linear:
    return kernels.projection(_joined(kernels.dtype, *modules))


def _joined(dtype: torch.dtype, *modules: nn.Module) -> Linear:
    """Concatenate layers of one input, all with or all without bias; a single layer is not copied."""
    layers = [read_linear(module) for module in modules]
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


def joined_qk_norm(layer: nn.Module, parts: LayerParts, dtype: torch.dtype) -> Float[Tensor, "H+K D"] | None:
    """Return the scales of the norms over query and key heads, one for each head; None where there are none."""
    if parts.head_norms is None:
        return None
    scales = list[Tensor]()
    for paths in zip(parts.head_norms, parts.projections, strict=False):
        norm, projection = cast(tuple[Any, Any], tuple(map(layer.get_submodule, paths)))
        scale = norm.weight.detach().to(dtype)
        scales.append(scale.expand(projection.out_features // len(scale), len(scale)))
    return torch.cat(scales)
