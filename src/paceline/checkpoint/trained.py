"""What a checkpoint knows of a model."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from transformers import PreTrainedModel

from paceline.parallel import Ranks

Write = Callable[[Path], Sequence[Path]]
"""Writes this rank's files into a directory that is there, and says which."""


class Trained(Protocol):
    """A model that knows which of its weights training changes."""

    @property
    def model(self) -> PreTrainedModel:
        """The model whose parameters the optimiser has; of several ranks, this one's part."""

    def weights_writer(self, ranks: Ranks) -> Write:
        """Agree with all ranks on who writes what of the weights that training changes, exactly as they are."""
