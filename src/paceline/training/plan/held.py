"""What of a model one process holds where several train it in one layout or another, in parameters."""

import math
from dataclasses import dataclass

from paceline.config.layout import Sizes
from paceline.config.sections import Config
from paceline.training.plan.shape import ModelShape


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """Numbers held by the process that holds the most."""

    weights: int
    """An adapter's among them."""
    base: int
    """What a copy of the model without adapter has."""
    trained: int
    """Weights with optimiser moments."""
    gradients: int
    fetched: int
    """Most numbers at a time of weights fetched from other processes, and of whole gradients on their way to them."""


def held(config: Config, shape: ModelShape, sizes: Sizes) -> Held:
    """An adapter counts as if it were on every linear layer."""
    rank = config.lora.lora_rank
    adapter = rank * shape.num_layers * shape.linear_widths
    here = _before_slices(shape, sizes)
    moved = adapter // (sizes.tensor * sizes.pipeline) if rank else here
    parts = _Slicing(config.parallel.zero_stage, sizes.shard)
    return Held(
        weights=(here + moved * (rank > 0)) // sizes.shard,
        base=here // sizes.shard,
        trained=moved // sizes.shard,
        gradients=parts.gradients(moved),
        fetched=parts.fetched(here, shape, sizes, is_whole=not rank),
    )


def _before_slices(shape: ModelShape, sizes: Sizes) -> int:
    """Count the process at a pipeline's end: its layers and one of the two embeddings."""
    if sizes.pipeline == 1:
        return shape.parameters // sizes.tensor
    layers = math.ceil(shape.num_layers / sizes.pipeline) * shape.layer
    return (layers + shape.matrix) // sizes.tensor


@dataclass(frozen=True, slots=True)
class _Slicing:
    """What a stage of ZeRO leaves whole, in parameters. See `models/parallel/sharding.py`."""

    stage: int
    ranks: int

    def gradients(self, trained: int) -> int:
        """Until an update's last micro-batch stage 1 has them whole."""
        return trained // self.ranks + (trained if self.stage == 1 and self.ranks > 1 else 0)

    def fetched(self, here: int, shape: ModelShape, sizes: Sizes, *, is_whole: bool) -> int:
        """Below stage 3 all weights, and of stage 2 the gradients of embedding and head, and of a layer with the
        message that is made of it. At stage 3 embedding and head with their gradients, or these gradients with two
        layers and theirs."""
        if self.ranks == 1:
            return 0
        ends = shape.embeddings if sizes.pipeline == 1 else shape.matrix
        if self.stage == 1:
            return here
        if self.stage == 2:
            return here + (ends + 2 * shape.layer) // sizes.tensor * is_whole
        if not is_whole:
            return (ends + 2 * shape.layer) // sizes.tensor
        return max(2 * ends, ends + 4 * shape.layer) // sizes.tensor
