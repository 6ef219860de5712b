"""Gemma: norms of 1 + w, scaled embeddings, and from Gemma 2 on norms behind mixers and windows in most layers."""

from dataclasses import replace

from paceline.models.families.layer_plan import FULL, WINDOW, Family, LayerParts

_FOUR_NORMS = LayerParts(
    feed_forward_norm="pre_feedforward_layernorm",
    post_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
)
_CAPPED = replace(_FOUR_NORMS, cap="self_attn.attn_logit_softcapping")
_HEAD_NORMS = replace(_FOUR_NORMS, head_norms=("self_attn.q_norm", "self_attn.k_norm"))
_PARTS = {
    "gemma": {FULL: LayerParts()},
    "gemma2": {FULL: _CAPPED, WINDOW: _CAPPED},
    "gemma3": {FULL: _HEAD_NORMS, WINDOW: _HEAD_NORMS},
}

FAMILIES = tuple(
    Family(
        model_type=model_type,
        prefix=model_type.capitalize(),
        parts=parts,
        norm_offset=1.0,
        embedding_multiplier="embed_tokens.embed_scale",
    )
    for model_type, parts in _PARTS.items()
)
