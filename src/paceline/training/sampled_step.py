"""The rollouts of one step, and what it took to sample them."""

from dataclasses import dataclass

from paceline.training.rollouts.sampler import RolloutBatch


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightTransfer:
    """Cost of sending a step's weights to the samplers."""

    seconds: float
    nbytes: int
    """Bytes that each sampler received; 0 where weights are shared, or were there already."""


NO_TRANSFER = WeightTransfer(seconds=0.0, nbytes=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledStep:
    """Rollouts of one step, and the position of the data order after them."""

    batch: RolloutBatch
    position: int
    seconds: float
    """Wall seconds from the start of the weight transfer to the finished groups."""
    transfer: WeightTransfer = NO_TRANSFER
