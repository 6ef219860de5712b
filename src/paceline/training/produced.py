"""What the sampler hands over for one step."""

from dataclasses import dataclass

from paceline.training.rollouts.sampler import RolloutBatch


@dataclass(frozen=True, kw_only=True, slots=True)
class Handover:
    """The way of a step's weights to whoever samples it."""

    seconds: float
    nbytes: int
    """That each of them took; 0: the weights are shared, or were there already."""


SHARED = Handover(seconds=0.0, nbytes=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Produced:
    """A step's rollouts, and where the data order stands behind them."""

    batch: RolloutBatch
    position: int
    seconds: float
    """What all of it took, from the weights on their way to whoever samples to the groups."""
    handover: Handover = SHARED
