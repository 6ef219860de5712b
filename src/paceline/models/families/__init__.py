"""Families of models whose layers run through kernels; training, the fused decoder, `plan` and the docs read them here.

A new family is a new file, which lists its `FAMILIES`. A layer without a plan takes the model's own forward pass.

layer_plan.py  the plan of a layer: kind, sizes, and where projections, norms and caches are
llama.py       Llama, Mistral, Qwen2, Qwen3
"""

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from paceline.models.families.layer_plan import FULL, WINDOW, Family, LayerPlan

FAMILIES: tuple[Family, ...] = tuple(
    family
    for file in pkgutil.iter_modules(__path__)
    for family in getattr(importlib.import_module(f"{__name__}.{file.name}"), "FAMILIES", ())
)
_WINDOWS = ("sliding_window", "keep_window_size")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def layer_plans(config: Any, architecture: str = "") -> tuple[LayerPlan, ...]:
    """Read the plan of every layer from a configuration of transformers, or from the JSON object of a config.json.

    `architecture`: class of the model, which decides on the family where it is known; else the model type does.
    """
    if isinstance(config, Mapping):
        config = SimpleNamespace(**config)
    elif getattr(config, "is_heterogeneous", False):  # it refuses to give numbers that differ between layers
        config = SimpleNamespace(**{**vars(config), "model_type": config.model_type})

    def number(*names: str) -> int:
        return next((value for name in names if isinstance(value := getattr(config, name, None), int)), 0)

    named = {family.architecture: family for family in FAMILIES} | {family.model_type: family for family in FAMILIES}
    family = named.get(architecture) or named.get(getattr(config, "model_type", ""))
    window = next((size for name in _WINDOWS if (size := getattr(config, name, None)) is not None), None)
    kinds: Sequence[str] = getattr(config, "layer_types", None) or ()
    if not kinds:
        is_windowed = window is not None and getattr(config, "use_sliding_window", None) is not False
        kinds = [WINDOW if is_windowed else FULL] * max(1, number("num_hidden_layers"))
    heads, width = number("num_attention_heads"), number("hidden_size")
    return tuple(
        LayerPlan(
            kind=kind,
            window=window if kind == WINDOW else None,
            query_heads=heads,
            # older files leave out what follows from the rest: a key/value head per head, heads that fill the width
            key_value_heads=number("num_key_value_heads") or heads,
            head_dim=number("head_dim") or width // max(1, heads),
            inner=number("intermediate_size") or 4 * width,
            experts=number(*_EXPERTS),
            activation=getattr(config, "hidden_act", None),
            family=family,
        )
        for kind in kinds
    )


def partial_attention(layers: Sequence[LayerPlan]) -> str | None:
    """Return why some layers do not attend to all earlier tokens; None if all do.

    The packed forward pass and the fused decoder compute full attention only.
    """
    kinds = dict.fromkeys(layer.kind for layer in layers)
    other = [kind for kind in kinds if kind not in (FULL, WINDOW, "chunked_attention")]
    if other:
        return f"some layers are of the kind {other[0]}"
    return "some layers attend to a sliding window" if any(kind != FULL for kind in kinds) else None
