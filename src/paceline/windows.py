"""Which models look back over a window only: the packed pass and the fused decoder let a token see all before it."""

from typing import Any


def slides(config: Any) -> bool:
    """Whether some layers of a transformers model, by its configuration, attend to a sliding window or in chunks."""
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None:
        return any(kind != "full_attention" for kind in layer_types)
    return getattr(config, "sliding_window", None) is not None
