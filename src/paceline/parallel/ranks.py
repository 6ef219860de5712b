"""What the processes that train one policy need of each other, and a process that is alone."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import nn

from paceline.errors import TrainingError

Numbers = Mapping[str, float]


class RankLost(TrainingError):
    """The others cannot be reached, or do not answer: one of them is the culprit, this process is not."""


class Ranks(Protocol):
    """`size` processes with the same weights, each with a share of every step's samples. All make the same calls."""

    @property
    def rank(self) -> int:
        """Which of them this is, from 0."""

    @property
    def size(self) -> int:
        """How many there are."""

    def add_up_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Give every rank the sum of all ranks' gradients, the same bits on all; None stays where no rank has one.

        Raises:
            RankLost: another rank is gone, or silent for too long.
        """

    def collect(self, numbers: Numbers) -> Sequence[Numbers]:
        """What each rank gave, by rank.

        Raises:
            RankLost: another rank is gone, or silent for too long.
        """


class _OneRank:
    """`Ranks` of a process that trains alone."""

    rank, size = 0, 1

    def add_up_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """See `Ranks`."""

    def collect(self, numbers: Numbers) -> Sequence[Numbers]:
        """See `Ranks`."""
        return [numbers]


ONE_RANK = _OneRank()
