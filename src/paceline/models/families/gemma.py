"""Gemma: norms of 1 + w, scaled embeddings, and from Gemma 2 on norms behind mixers and windows in most layers."""

from dataclasses import replace

from paceline.models.families.layer_plan import FULL, WINDOW, Family, LayerParts

_FOUR_NORMS = LayerParts(
    feed_forward_norm="pre_feedforward_layernorm",
    post_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
)
_CAPPED = replace(_FOUR_NORMS, cap="self_attn.attn_logit_softcapping")
_HEAD_NORMS = replace(_FOUR_NORMS, head_norms=("self_attn.q_norm", "self_attn.k_norm"))
_SCALE = "embed_tokens.embed_scale"

FAMILIES = (
    Family(model_type="gemma", prefix="Gemma", norm_offset=1.0, embedding_multiplier=_SCALE),
    Family(
        model_type="gemma2",
        prefix="Gemma2",
        parts={FULL: _CAPPED, WINDOW: _CAPPED},
        norm_offset=1.0,
        embedding_multiplier=_SCALE,
    ),
    Family(
        model_type="gemma3",
        prefix="Gemma3",
        parts={FULL: _HEAD_NORMS, WINDOW: _HEAD_NORMS},
        norm_offset=1.0,
        embedding_multiplier=_SCALE,
    ),
)
