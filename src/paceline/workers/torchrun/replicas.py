"""Check of ranks that should hold the same weights, by fingerprint."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import TrainingError
from paceline.training.sampled_step import WeightTransfer


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightsChecksum:
    """Fingerprint of the weights on a rank."""

    part: tuple[int, ...]
    """Part of the model on this rank; ranks with the same part hold copies. Empty for the whole model."""
    fingerprint: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Renewed:
    """A rank's report of a weight sync."""

    transfer: WeightTransfer
    held: WeightsChecksum | None
    """Weights that it sent or has now; None if it took no part."""


def check_copies(held: Sequence[WeightsChecksum | None], *, policy_version: int) -> None:
    """Compare the ranks' fingerprints after an update; None is skipped.

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
