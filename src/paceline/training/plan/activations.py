"""What an update keeps of a micro-batch for its backward pass, from a model's shape.

W width, H heads, K key/value heads, D their width, I inner width of the feed-forward layers; per token and layer:

    on a CPU, by its kernels   in float32 2 W of residuals; in the computation's precision 2 W, (2 H + 2 K) D, 3 I
    on CUDA, by torch          in float32 4 W of two norms; in the computation's precision 4 W, (3 H + 4 K) D, 4 I

Torch keeps both factors of every product and what a norm computes on the way; the kernels compute some of it again.
Models whose layers the kernels do not know keep up to twice as much on a CPU.
"""

from paceline.config.layout import Sizes
from paceline.config.sections import Config
from paceline.models.activation_checkpointing import ACTIVATION_SHARE, Activations, Cut, choose_cut
from paceline.training.plan.batches import considered_micro_batches, even_tokens
from paceline.training.plan.hardware import Device
from paceline.training.plan.shape import ModelShape

FLOAT32_BYTES = 4
HELD_BY_PASSES = (0.0, 0.0, 0.3, 0.6)
"""Of what one micro-batch keeps, what the C library holds beside it by the number of micro-batches in an update, of the
last entry or more: pieces that were given back, between others that stay, too small for the next. Found on a CPU with
30 and 100 million parameters; layers that are computed again have it given back before each pass."""
HELD_WITH_ADAPTER = 0.8
"""The same with an adapter, whose sums are given back between pieces that stay, in the first micro-batch already."""


def activations(shape: ModelShape, sizes: Sizes, on: Device, number_bytes: int) -> Activations:
    """Of a forward pass, per token of this process."""
    heads, key_values = shape.num_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    if on.kind == "cuda":
        single, computed = 4 * shape.width, 4 * shape.width + 3 * heads + 4 * key_values + 4 * shape.inner
    else:
        single, computed = 2 * shape.width, 2 * shape.width + 2 * heads + 2 * key_values + 3 * shape.inner
    layers = shape.num_layers / sizes.pipeline / sizes.tensor
    return Activations(
        all_layers=layers * (FLOAT32_BYTES * single + number_bytes * computed),
        layer_input=FLOAT32_BYTES * shape.width,
        layers=shape.num_layers,
    )


def planned_cut(config: Config, of: Activations, sizes: Sizes, on: Device, left: float) -> Cut:
    """By the rule of the run, with `left` bytes of the device where that goes by what is free."""
    asked = config.model.gradient_checkpointing
    tokens_of = {size: even_tokens(config, size, sizes) for size in considered_micro_batches(config, on.kind)}
    return choose_cut(of, tokens_of, ACTIVATION_SHARE * max(0.0, left), asked=asked)


def kept(config: Config, of: Activations, cut: Cut, on: Device, passes: int) -> int:
    """Bytes at most, with what the C library holds beside them."""
    if cut.layers == of.layers:
        return round(cut.tokens * (of.kept(cut.layers) + of.all_layers / of.layers))
    held = HELD_WITH_ADAPTER if config.lora.lora_rank else HELD_BY_PASSES[min(passes, len(HELD_BY_PASSES) - 1)]
    return round(cut.tokens * of.kept(cut.layers) * (1 + (held if on.kind == "cpu" and not cut.layers else 0.0)))
