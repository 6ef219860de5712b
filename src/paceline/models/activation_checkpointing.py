"""How many layers to recompute in the backward pass, so that activations fit: arithmetic on measured sizes."""

from collections.abc import Mapping
from dataclasses import dataclass

ACTIVATION_SHARE = 0.5
"""Share of the free memory that `auto` plans activations for. The rest is for what the estimate leaves out: temporary
tensors, logits, the allocator's cache, and on a CPU other processes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Activations:
    """Bytes of saved activations per token of a forward pass, padding included."""

    all_layers: float
    """Bytes without recomputation."""
    layer_input: int
    """Bytes of the input of a recomputed layer."""
    layers: int
    """Layers that can be recomputed one by one; 0 if the model's cannot."""

    def kept(self, recomputed: int) -> float:
        """Return the bytes with this many of the first layers recomputed."""
        if recomputed == 0:
            return self.all_layers
        return self.all_layers * (1 - recomputed / self.layers) + recomputed * self.layer_input

    def to_recompute(self, *, tokens: int, room: float) -> int:
        """Return the fewest layers to recompute for `tokens` tokens to fit into `room` bytes; else all but one."""
        most = max(0, self.layers - 1)
        return next((count for count in range(most) if tokens * self.kept(count) <= room), most)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecomputedLayers:
    """Size of micro-batches, and number of layers to recompute."""

    micro_batch_tokens: int
    """Budget of tokens of a micro-batch."""
    tokens: int
    """Largest number of tokens of a pass."""
    layers: int
    """Number of layers that are recomputed."""


def choose_cut(activations: Activations, tokens_of: Mapping[int, int], room: float, *, asked: str) -> RecomputedLayers:
    """Choose the largest micro-batch that fits, else the smallest; `asked` is `gradient_checkpointing`.

    All layers are recomputed ("true"), none ("false"), or ("auto") none if a size fits so, else as few as necessary: a
    smaller micro-batch costs less than recomputation. `tokens_of` maps sizes, largest first, to the largest number of
    tokens of a pass; `room` is bytes for activations.
    """
    layers = activations.layers if asked == "true" else 0
    fitting = [size for size, tokens in tokens_of.items() if tokens * activations.kept(layers) <= room]
    chosen = fitting[0] if fitting else [*tokens_of][-1]
    tokens = tokens_of[chosen]
    if asked == "auto":
        layers = activations.to_recompute(tokens=tokens, room=room)
    return RecomputedLayers(micro_batch_tokens=chosen, tokens=tokens, layers=layers)
