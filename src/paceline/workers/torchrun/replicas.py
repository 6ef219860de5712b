"""Whether ranks that should hold the same weights do: the fingerprints that they answer with."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import TrainingError
from paceline.training.sampled_step import WeightTransfer


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightsChecksum:
    """Weights on a rank."""

    part: tuple[int, ...]
    """Of the model, where ranks have it in parts: those with the same part hold copies. Empty: all of it."""
    fingerprint: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Renewed:
    """A rank's share in the way of the weights to those who sample."""

    transfer: WeightTransfer
    held: WeightsChecksum | None
    """What it sent, or has now; None: nothing came to it, or from it."""


def check_copies(held: Sequence[WeightsChecksum | None], *, policy_version: int) -> None:
    """Compare what ranks, in their order, hold of the weights after so many updates; None: nothing to compare.

    Raises:
        TrainingError: two hold different copies of one part; the sentence names both.
    """
    first = dict[tuple[int, ...], tuple[int, int]]()
    for rank, one in enumerate(held):
        if one is None:
            continue
        other, wanted = first.setdefault(one.part, (rank, one.fingerprint))
        if one.fingerprint != wanted:
            raise TrainingError(
                f"rank {rank} has weights {one.fingerprint:016x} after update {policy_version}, rank {other} has "
                f"{wanted:016x}; they must be the same, so look at the machines, then resume"
            )
