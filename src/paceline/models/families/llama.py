"""Llama's layers, and those of families that differ from them in a few parts."""

from dataclasses import replace

from paceline.models.families.layer_plan import FULL, WINDOW, Family, LayerParts

_LLAMA = LayerParts()
_HEAD_NORMS = LayerParts(head_norms=("self_attn.q_norm", "self_attn.k_norm"))
_SCALED = LayerParts(query_scale=True)
_SOME_ROTATED = LayerParts(rotates="self_attn.use_rope")
_MULTIPLIED = LayerParts(multiplier="residual_multiplier")
_JOINED = LayerParts(projections=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",), down="mlp.down_proj")
_POST_NORMS = replace(
    _HEAD_NORMS,
    mixer_norm=None,
    feed_forward_norm=None,
    post_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
)

FAMILIES = (
    Family(model_type="llama", prefix="Llama"),
    Family(model_type="mistral", prefix="Mistral", parts={FULL: _LLAMA, WINDOW: _LLAMA}),
    Family(model_type="ministral", prefix="Ministral", parts={FULL: _LLAMA, WINDOW: _LLAMA}),
    Family(model_type="ministral3", prefix="Ministral3", parts={FULL: _SCALED, WINDOW: _SCALED}),
    Family(model_type="qwen2", prefix="Qwen2", parts={FULL: _LLAMA, WINDOW: _LLAMA}),
    Family(model_type="qwen2_vl", prefix="Qwen2VL", parts={FULL: _LLAMA, WINDOW: _LLAMA}),
    Family(model_type="qwen2_5_vl", prefix="Qwen2_5_VL", parts={FULL: _LLAMA, WINDOW: _LLAMA}),
    Family(model_type="qwen3", prefix="Qwen3", parts={FULL: _HEAD_NORMS, WINDOW: _HEAD_NORMS}),
    Family(model_type="qwen3_vl", prefix="Qwen3VL", module_prefix="Qwen3VLText", parts={FULL: _HEAD_NORMS}),
    Family(model_type="qwen3_moe", prefix="Qwen3Moe", parts={FULL: replace(_HEAD_NORMS, experts="mlp")}),
    Family(model_type="smollm3", prefix="SmolLM3", parts={FULL: _SOME_ROTATED, WINDOW: _SOME_ROTATED}),
    Family(
        model_type="granite",
        prefix="Granite",
        parts={FULL: _MULTIPLIED},
        embedding_multiplier="embedding_multiplier",
    ),
    Family(
        model_type="granite_swa",
        prefix="GraniteSWA",
        parts={kind: replace(_MULTIPLIED, sinks="self_attn.sinks") for kind in (FULL, WINDOW)},
        embedding_multiplier="embedding_multiplier",
    ),
    Family(
        model_type="hyperclovax",
        prefix="HyperCLOVAX",
        parts={FULL: replace(_MULTIPLIED, post_norms=("post_norm1", "post_norm2"))},
        embedding_multiplier="embedding_multiplier",
    ),
    Family(model_type="phi3", prefix="Phi3", parts={FULL: _JOINED, WINDOW: _JOINED}),
    Family(model_type="seed_oss", prefix="SeedOss"),
    Family(model_type="olmo2", prefix="Olmo2", parts={FULL: _POST_NORMS}),
    Family(model_type="olmo3", prefix="Olmo3", parts={FULL: _POST_NORMS, WINDOW: _POST_NORMS}),
    Family(
        model_type="gpt_oss",
        prefix="GptOss",
        parts={kind: LayerParts(sinks="self_attn.sinks", experts="mlp") for kind in (FULL, WINDOW)},
    ),
)
