"""How many layers a backward pass computes again, so that what the others keep fits: arithmetic on measured sizes."""

from collections.abc import Mapping
from dataclasses import dataclass

ACTIVATION_SHARE = 0.5
"""Share of the free memory that `auto` plans activations for. The rest is for what the estimate leaves out: temporary
tensors, logits, the allocator's cache, and on a CPU other processes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Activations:
    """Bytes that a forward pass keeps for the backward pass, per token that it forwards, padding included."""

    all_layers: float
    """With nothing computed again."""
    layer_input: int
    """What is kept of a layer that is computed again."""
    layers: int
    """Layers that can be computed again one by one; 0 where the model's are of another kind."""

    def kept(self, recomputed: int) -> float:
        """With so many of the first layers computed again."""
        if recomputed == 0:
            return self.all_layers
        return self.all_layers * (1 - recomputed / self.layers) + recomputed * self.layer_input

    def to_recompute(self, *, tokens: int, room: float) -> int:
        """The fewest layers to compute again for `tokens` tokens to fit into `room` bytes; else all but one."""
        most = max(0, self.layers - 1)
        return next((count for count in range(most) if tokens * self.kept(count) <= room), most)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecomputedLayers:
    """How large micro-batches are, and what is computed again of them."""

    micro_batch_tokens: int
    """The budget."""
    tokens: int
    """What a pass has of it at most."""
    layers: int
    """Number of layers that are recomputed."""


def choose_cut(activations: Activations, tokens_of: Mapping[int, int], room: float, *, asked: str) -> RecomputedLayers:
    """Choose the largest micro-batch that fits, else the smallest; `asked` is `gradient_checkpointing`.

    Every layer is computed again ("true"), none ("false"), or ("auto") none where a size fits so, else as few as it
    takes: a smaller micro-batch costs less than computing again. `tokens_of` is from sizes, largest first, to the
    tokens that a pass has of them at most; `room` is bytes for what is kept.
    """
    layers = activations.layers if asked == "true" else 0
    fitting = [size for size, tokens in tokens_of.items() if tokens * activations.kept(layers) <= room]
    chosen = fitting[0] if fitting else [*tokens_of][-1]
    tokens = tokens_of[chosen]
    if asked == "auto":
        layers = activations.to_recompute(tokens=tokens, room=room)
    return RecomputedLayers(micro_batch_tokens=chosen, tokens=tokens, layers=layers)
