"""What a process is among the ranks, and what it computes with."""

from dataclasses import dataclass

import torch

from paceline.runtime.progress import NULL_PROGRESS, Progress
from paceline.workers.torchrun.broadcast import BroadcastGroup


@dataclass(frozen=True, kw_only=True, slots=True)
class RankContext:
    """A process's place."""

    rank: int
    device: torch.device
    cores: int
    broadcast_group: BroadcastGroup | None = None
    """The way to the ranks that only sample, of the first rank and of them; None: there are none, or this rank has no
    part in it."""
    progress: Progress = NULL_PROGRESS
    """Is told how far the work of the first rank has come: it has the screen."""
