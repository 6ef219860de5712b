"""Which layers do not see all that came before: the packed pass and the fused decoder let every token see all of it."""

from typing import Any


def short_sighted(config: Any) -> str | None:
    """Why some layers do not attend to all tokens before, by a configuration of transformers; None: all of them do."""
    kinds = dict.fromkeys(getattr(config, "layer_types", None) or ())
    other = [kind for kind in kinds if kind not in ("full_attention", "sliding_attention", "chunked_attention")]
    if other:
        return f"some layers are of the kind {other[0]}"
    slides = any(kind != "full_attention" for kind in kinds)
    if not kinds:
        slides = any(getattr(config, name, None) is not None for name in ("sliding_window", "keep_window_size"))
    return "some layers attend to a sliding window" if slides else None
