"""Families with attention in some layers, and in the others mixers that keep a state of fixed size."""

from dataclasses import replace

from paceline.models.families.layer_plan import FULL, Family, LayerParts

LINEAR = "linear_attention"
"""transformers' name of a layer with a recurrent state."""
DELTA, CONVOLUTION, MAMBA = "gated_delta", "convolution", "mamba2"
"""Kinds of mixers: the gated delta rule behind a convolution, a gated short convolution, Mamba-2."""

_QWEN = LayerParts(
    head_norms=("self_attn.q_norm", "self_attn.k_norm"),
    output_gate=True,
    experts="mlp",
)
_QWEN_PARTS = {FULL: _QWEN, LINEAR: replace(_QWEN, mixer="linear_attn", mixer_kind=DELTA, head_norms=None)}
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
_LFM_PARTS = {FULL: _LFM, "conv": replace(_LFM, mixer="conv", mixer_kind=CONVOLUTION, head_norms=None)}
_GRANITE = LayerParts(
    feed_forward="shared_mlp",
    gate_up=("shared_mlp.input_linear",),
    down="shared_mlp.output_linear",
    experts="block_sparse_moe",
    multiplier="residual_multiplier",
)

FAMILIES = (
    Family(model_type="qwen3_next", prefix="Qwen3Next", parts=_QWEN_PARTS, norm_offset=1.0),
    Family(model_type="qwen3_5", prefix="Qwen3_5", parts=_QWEN_PARTS, norm_offset=1.0),
    Family(model_type="qwen3_5_moe", prefix="Qwen3_5Moe", parts=_QWEN_PARTS, norm_offset=1.0),
    Family(model_type="lfm2", prefix="Lfm2", parts=_LFM_PARTS, final_norm="embedding_norm"),
    Family(model_type="lfm2_moe", prefix="Lfm2Moe", parts=_LFM_PARTS, final_norm="embedding_norm"),
    Family(
        model_type="granitemoehybrid",
        prefix="GraniteMoeHybrid",
        parts={FULL: _GRANITE, LINEAR: replace(_GRANITE, mixer="mamba", mixer_kind=MAMBA)},
        embedding_multiplier="embedding_multiplier",
    ),
)
