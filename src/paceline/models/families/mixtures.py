"""Families with Llama's attention, or nearly, and a router with experts in some layers or all."""

from dataclasses import replace

from paceline.models.families.layer_plan import FULL, Family, LayerParts

_PLAIN = LayerParts(experts="mlp")
_NORMED = replace(_PLAIN, head_norms=("self_attn.q_norm", "self_attn.k_norm"))

FAMILIES = (
    Family(model_type="mixtral", prefix="Mixtral", parts={FULL: _PLAIN}),
    Family(model_type="qwen2_moe", prefix="Qwen2Moe", parts={FULL: _PLAIN}),
    Family(model_type="qwen3_moe", prefix="Qwen3Moe", parts={FULL: _NORMED}),
)
