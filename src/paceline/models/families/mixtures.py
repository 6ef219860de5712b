"""Families with nearly Llama's attention, and a router with experts in some layers or all."""

from paceline.models.families.layer_plan import FULL, Family, LayerParts

_PLAIN = LayerParts(experts="mlp")
_NORMED = LayerParts(experts="mlp", head_norms=("self_attn.q_norm", "self_attn.k_norm"))

FAMILIES = (
    Family(model_type="mixtral", prefix="Mixtral", parts={FULL: _PLAIN}),
    Family(model_type="qwen2_moe", prefix="Qwen2Moe", parts={FULL: _PLAIN}),
    Family(model_type="olmoe", prefix="Olmoe", parts={FULL: _NORMED}),
    Family(model_type="glm4_moe", prefix="Glm4Moe", parts={FULL: _PLAIN}),
)
