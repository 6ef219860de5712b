"""Families of models whose layers run through kernels; training, the fused decoder, `plan` and the docs read them here.

A new family is a new file, which lists its `FAMILIES`. A layer without a plan takes the model's own forward pass.

layer_plan.py  the plan of a layer: kind, sizes, and where projections, norms and caches are
llama.py       Llama and families that differ from it in a few parts: Mistral, Qwen, SmolLM, Granite, Phi, OLMo, gpt-oss
mixtures.py    Mixtral, Qwen2-MoE, OLMoE, GLM-4.5
gemma.py       Gemma 1 to 3
cohere.py      Cohere 2
glm.py         GLM, ERNIE 4.5 and Helium, whose rotation pairs neighbours
hybrids.py     families with attention in some layers and mixers that keep a state in the others
"""

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from paceline.models.families.layer_plan import (
    DELTA_RULE,
    FULL,
    MAMBA_2,
    SHORT_CONVOLUTION,
    WINDOW,
    Family,
    LayerParts,
    LayerPlan,
)

FAMILIES: tuple[Family, ...] = tuple(
    family
    for file in pkgutil.iter_modules(__path__)
    for family in getattr(importlib.import_module(f"{__name__}.{file.name}"), "FAMILIES", ())
)
_WINDOWS = ("sliding_window", "keep_window_size")
GELU = ("gelu_pytorch_tanh",)
ACTIVATIONS = ("silu", "swish", *GELU)
"""Activations of gated feed-forward layers that the kernels compute."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_DELTA_SIZES = ("num_value_heads", "key_head_dim", "value_head_dim")
_EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "moe_k")


def layer_plans(config: Any, architecture: str = "") -> tuple[LayerPlan, ...]:
    """Read the plan of every layer from a configuration of transformers, or from the JSON object of a config.json.

    `architecture`: class of the model, which decides on the family where it is known; else the model type does.
    """
    if isinstance(config, Mapping):
        config = SimpleNamespace(**config)
    elif getattr(config, "is_heterogeneous", False):  # it refuses to give numbers that differ between layers
        config = SimpleNamespace(**{**vars(config), "model_type": config.model_type})

    named = {family.architecture: family for family in FAMILIES} | {family.model_type: family for family in FAMILIES}
    # a checkpoint's text part says so behind its type
    family = named.get(architecture) or named.get(getattr(config, "model_type", "").removesuffix("_text"))
    kinds: Sequence[str] = getattr(config, "layer_types", None) or ()
    if not kinds:
        is_windowed = _window(config) is not None and getattr(config, "use_sliding_window", None) is not False
        kinds = [WINDOW if is_windowed else FULL] * max(1, _number(config, "num_hidden_layers"))
    # layers that differ in their heads have a configuration each
    described = config.per_layer_config if getattr(config, "is_heterogeneous", False) else [config] * len(kinds)
    return tuple(
        LayerPlan(
            kind=kind,
            window=_window(layer) if kind == WINDOW else None,
            query_heads=(heads := _number(layer, "num_attention_heads")),
            # older files leave out what follows from the rest: a key/value head per head, heads that fill the width
            key_value_heads=_number(layer, "num_key_value_heads") or heads,
            head_dim=_number(layer, "head_dim") or _number(layer, "hidden_size") // max(1, heads),
            inner=_number(layer, "intermediate_size") or 4 * _number(layer, "hidden_size"),
            experts=(experts := _number(layer, *_EXPERTS)),
            experts_per_token=_number(layer, *_EXPERTS_PER_TOKEN) if experts else 0,
            expert_inner=_number(layer, "moe_intermediate_size", "intermediate_size") if experts else 0,
            shared_inner=_shared_inner(layer) if experts else 0,
            state=0 if family is None else _state(layer, family.parts.get(kind)),
            activation=getattr(layer, "hidden_activation", None) or getattr(layer, "hidden_act", None) or "silu",
            family=family,
        )
        for kind, layer in zip(kinds, described, strict=True)
    )


def _number(config: Any, *names: str) -> int:
    return next((value for name in names if isinstance(value := getattr(config, name, None), int)), 0)


def _shared_inner(config: Any) -> int:
    several = _number(config, "n_shared_experts") * _number(config, "moe_intermediate_size")
    return several or _number(config, "shared_expert_intermediate_size", "shared_intermediate_size")


def _state(config: Any, parts: LayerParts | None) -> int:
    """Count the numbers of a row's state: the recurrent one, and the convolution's last inputs."""
    kind, width = None if parts is None else parts.mixer_kind, _number(config, "hidden_size")
    if kind == SHORT_CONVOLUTION:
        return (_number(config, "conv_L_cache") - 1) * width
    if kind == DELTA_RULE:
        heads, keys, values = (_number(config, f"linear_{name}") for name in _DELTA_SIZES)
        channels = 2 * _number(config, "linear_num_key_heads") * keys + heads * values
        return heads * keys * values + (_number(config, "linear_conv_kernel_dim") - 1) * channels
    if kind == MAMBA_2:
        heads, head, size = (_number(config, f"mamba_{name}") for name in ("n_heads", "d_head", "d_state"))
        channels = heads * head + 2 * _number(config, "mamba_n_groups") * size
        return heads * head * size + (_number(config, "mamba_d_conv") - 1) * channels
    return 0


def _window(config: Any) -> int | None:
    return next((size for name in _WINDOWS if (size := getattr(config, name, None)) is not None), None)


def unplanned_layer(layers: Sequence[LayerPlan], name: str) -> str | None:
    """Return which layer of the model class `name` no plan describes, and why; None: all have a plan."""
    for number, layer in enumerate(layers):
        if layer.family is None or layer.family.architecture != name:
            return f"layer {number} has no plan, as {name} belongs to no family with one"
        if layer.parts is None:
            return f"layer {number} has no plan, as none of {layer.family.prefix}'s is for the kind {layer.kind}"
        if layer.activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            return f"layer {number} has no plan, as its activation is {layer.activation!r}, not one of {known}"
    return None
