"""Families with attention in some layers, and in the others mixers that keep a state of fixed size."""

from dataclasses import replace

from paceline.models.families.layer_plan import DELTA_RULE, FULL, MAMBA_2, SHORT_CONVOLUTION, Family, LayerParts

LINEAR = "linear_attention"
"""transformers' name of a layer with a recurrent state."""

_QWEN = LayerParts(
    head_norms=("self_attn.q_norm", "self_attn.k_norm"),
    output_gate=True,
    experts="mlp",
)
_QWEN_DELTA = replace(
    _QWEN,
    mixer="linear_attn",
    mixer_kind=DELTA_RULE,
    projections=tuple(f"linear_attn.in_proj_{part}" for part in ("qkv", "z", "b", "a")),
    output="linear_attn.out_proj",
    head_norms=None,
)
_QWEN_PARTS = {FULL: _QWEN, LINEAR: _QWEN_DELTA}
_QWEN_NEXT_DELTA = replace(_QWEN_DELTA, projections=("linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba"))
_LFM = LayerParts(
    mixer_norm="operator_norm",
    head_norms=("self_attn.q_layernorm", "self_attn.k_layernorm"),
    output="self_attn.out_proj",
    feed_forward_norm="ffn_norm",
    feed_forward="feed_forward",
    gate_up=("feed_forward.w1", "feed_forward.w3"),
    down="feed_forward.w2",
    experts="feed_forward",
)
_LFM_CONVOLUTION = replace(
    _LFM,
    mixer="conv",
    mixer_kind=SHORT_CONVOLUTION,
    projections=("conv.in_proj",),
    output="conv.out_proj",
    head_norms=None,
)
_LFM_PARTS = {FULL: _LFM, "conv": _LFM_CONVOLUTION}
_GRANITE = LayerParts(
    feed_forward="shared_mlp",
    gate_up=("shared_mlp.input_linear",),
    down="shared_mlp.output_linear",
    experts="block_sparse_moe",
    multiplier="residual_multiplier",
)
_GRANITE_MAMBA = replace(
    _GRANITE, mixer="mamba", mixer_kind=MAMBA_2, projections=("mamba.in_proj",), output="mamba.out_proj"
)
_BAMBA = LayerParts(
    feed_forward_norm="pre_ff_layernorm",
    feed_forward="feed_forward",
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
)
_BAMBA_MAMBA = replace(
    _BAMBA, mixer="mamba", mixer_kind=MAMBA_2, projections=("mamba.in_proj",), output="mamba.out_proj"
)
_OLMO = LayerParts(
    mixer_norm=None,
    head_norms=("self_attn.q_norm", "self_attn.k_norm"),
    feed_forward_norm=None,
    post_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
)
_OLMO_DELTA = LayerParts(
    mixer="linear_attn",
    mixer_kind=DELTA_RULE,
    projections=tuple(f"linear_attn.{part}_proj" for part in "qkvgba"),
    output="linear_attn.o_proj",
)

FAMILIES = (
    Family(model_type="qwen3_next", prefix="Qwen3Next", parts={FULL: _QWEN, LINEAR: _QWEN_NEXT_DELTA}, norm_offset=1.0),
    Family(model_type="qwen3_5", prefix="Qwen3_5", parts=_QWEN_PARTS, norm_offset=1.0),
    Family(model_type="qwen3_5_moe", prefix="Qwen3_5Moe", parts=_QWEN_PARTS, norm_offset=1.0),
    Family(model_type="lfm2", prefix="Lfm2", parts=_LFM_PARTS, final_norm="embedding_norm"),
    Family(model_type="lfm2_moe", prefix="Lfm2Moe", parts=_LFM_PARTS, final_norm="embedding_norm"),
    Family(
        model_type="granitemoehybrid",
        prefix="GraniteMoeHybrid",
        parts={FULL: _GRANITE, LINEAR: _GRANITE_MAMBA},
        embedding_multiplier="embedding_multiplier",
    ),
    Family(
        model_type="bamba",
        prefix="Bamba",
        parts={FULL: _BAMBA, LINEAR: _BAMBA_MAMBA},
        final_norm="final_layernorm",
    ),
    Family(model_type="olmo_hybrid", prefix="OlmoHybrid", parts={FULL: _OLMO, LINEAR: _OLMO_DELTA}),
)
