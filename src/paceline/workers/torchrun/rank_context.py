"""A process's place among the ranks, and its resources."""

from dataclasses import dataclass

import torch

from paceline.runtime.progress import NULL_PROGRESS, Progress
from paceline.workers.torchrun.broadcast import BroadcastGroup


@dataclass(frozen=True, kw_only=True, slots=True)
class RankContext:
    """Rank, device and connections of a process."""

    rank: int
    device: torch.device
    cores: int
    broadcast_group: BroadcastGroup | None = None
    """Group of the first rank and those that only sample; None on other ranks, or if no rank only samples."""
    progress: Progress = NULL_PROGRESS
    """Progress of the first rank's work: it has the terminal."""
