"""Llama's layers, and those of families that differ from them in biases and norms over heads alone."""

from paceline.models.families.layer_plan import FULL, Family, LayerParts

FAMILIES = (
    Family(model_type="llama", prefix="Llama"),
    Family(model_type="mistral", prefix="Mistral"),
    Family(model_type="qwen2", prefix="Qwen2"),
    Family(
        model_type="qwen3",
        prefix="Qwen3",
        parts={FULL: LayerParts(head_norms=("self_attn.q_norm", "self_attn.k_norm"))},
    ),
)
