"""Layers with sliding or chunked windows: the packed forward pass and the fused decoder compute full attention only."""

from typing import Any


def partial_attention(config: Any) -> str | None:
    """Return why some layers of a transformers configuration do not attend to all earlier tokens; None if all do."""
    kinds = dict.fromkeys(getattr(config, "layer_types", None) or ())
    other = [kind for kind in kinds if kind not in ("full_attention", "sliding_attention", "chunked_attention")]
    if other:
        return f"some layers are of the kind {other[0]}"
    uses_sliding_window = any(kind != "full_attention" for kind in kinds)
    if not kinds:
        uses_sliding_window = any(
            getattr(config, name, None) is not None for name in ("sliding_window", "keep_window_size")
        )
    return "some layers attend to a sliding window" if uses_sliding_window else None
