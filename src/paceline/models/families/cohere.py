"""Cohere 2: mixer and feed-forward layers beside each other, norms that subtract the mean, full layers unrotated."""

from paceline.models.families.layer_plan import FULL, WINDOW, Family, LayerParts

_PARALLEL = LayerParts(feed_forward_norm=None, parallel=True, interleaved=True, rotates="self_attn.sliding_window")

FAMILIES = (Family(model_type="cohere2", prefix="Cohere2", parts={FULL: _PARALLEL, WINDOW: _PARALLEL}, centred=True),)
