"""Activation checkpointing and micro-batches by the memory of this machine, and the disk space of a run."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from paceline.config.objective import OptimConfig
from paceline.config.sections import Config
from paceline.kernels.linear import ProductLinear
from paceline.models.activation_checkpointing import ACTIVATION_SHARE, Activations, choose_cut
from paceline.models.activations import recompute
from paceline.models.loaded import Loaded
from paceline.models.parallel.pieces import piece_of
from paceline.models.parallel.ranks import Ranks
from paceline.reports.format import gibibytes
from paceline.training.plan.batches import considered_micro_batches, most_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Recomputing:
    """Choice of what `--gradient-checkpointing` and `--micro-batch-tokens` leave open."""

    micro_batch_tokens: int
    layers: int
    of: int
    needed: float
    """Bytes of activations that remain."""
    room: float
    """Bytes that were available for them."""

    def describe(self) -> list[str]:
        """A sentence where something is recomputed, or should be and cannot."""
        sentences = []
        if self.layers:
            sentences.append(
                f"gradient checkpointing: {self.layers} of {self.of} layers are computed again in the backward pass, "
                f"so that activations take {gibibytes(self.needed)}"
            )
        if self.needed > self.room:
            sentences.append(
                f"activations may take {gibibytes(self.needed)}, more than the {gibibytes(self.room)} that are half of "
                "what is free; lower --micro-batch-tokens if memory runs out"
            )
        return sentences


def least_memory(free: int | None, ranks: Ranks) -> int | None:
    """Return the least free memory of all ranks, in bytes: ranks that share layers must recompute the same ones."""
    bytes_free = [numbers["free"] for numbers in ranks.collect({} if free is None else {"free": free}) if numbers]
    return int(min(bytes_free)) if bytes_free else None


def choose_recomputing(
    config: Config,
    policy: Loaded,
    measure: Callable[[], Activations],
    *,
    padded: bool,
    longest_prompt: int,
    free: int | None,
) -> Recomputing | None:
    """Choose the size of a micro-batch and, under `auto`, how many layers are computed again; None: nothing is open.

    Of several sizes the largest that fits, else the smallest (`choose_cut`). A deterministic run takes the first, which
    does not hang on what is free today. `measure` says what a pass keeps; `free` bytes are left where activations go,
    once the first update has made what stays; None: the system does not say.
    """
    model, asked = policy.model, config.model.gradient_checkpointing
    sizes = considered_micro_batches(config, model.device.type)
    if free is None or (asked != "auto" and len(sizes) == 1):
        return None
    if asked == "true":
        recompute(model, 0)  # what a layer keeps is measured where none is computed again
    activations = measure()
    room = ACTIVATION_SHARE * max(0, free)
    tokens_of = {size: most_tokens(config, size, prompt=longest_prompt, padded=padded) for size in sizes}
    cut = choose_cut(activations, tokens_of, room, asked=asked)
    if asked == "true":
        recompute(model, None)
    elif cut.layers:
        recompute(model, cut.layers)
    return Recomputing(
        micro_batch_tokens=cut.micro_batch_tokens,
        layers=cut.layers,
        of=activations.layers,
        needed=cut.tokens * activations.kept(cut.layers),
        room=room,
    )


def image_cost(policy: Loaded, measure: Callable[[], Activations]) -> float:
    """Return how many tokens of the language model keep as many bytes as a trained encoder for a token of an image."""
    if policy.vision is None or not policy.vision.is_trained:
        return 0.0
    from paceline.models.vision.probe import bytes_per_feature  # most runs have no images

    return bytes_per_feature(policy.vision) / measure().all_layers


def to_come(optim: OptimConfig, policy: Loaded) -> int:
    """Bytes that the first update adds here: gradients, moments, and weights in the precision of the computation.

    Of the last are only those of layers that autocast itself casts, and keeps for the backward pass: `ProductLinear`
    casts again, embeddings are not cast, and experts (matrices in three dimensions) multiply in groups, without a copy.
    """
    moments = 0 if "optimizer" in optim.offload else optim.moment_bytes
    pieces = [piece_of(parameter).tensor.numel() for parameter in policy.model.parameters() if parameter.requires_grad]
    casting = policy.compute_dtype != policy.model.dtype
    cast = [
        parameter.numel() * policy.compute_dtype.itemsize
        for module in policy.model.modules()
        if casting and not isinstance(module, ProductLinear | nn.Embedding)
        for parameter in module.parameters(recurse=False)
        if parameter.is_floating_point() and parameter.dim() == 2
    ]
    return sum(pieces) * (policy.model.dtype.itemsize + moments) + sum(cast)


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """Bytes of a checkpoint, and of the final model."""

    checkpoint: int
    final: int
