"""What a checkpoint knows of a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from transformers import PreTrainedModel

from paceline.models.parallel.copies import Shelf
from paceline.models.parallel.ranks import Ranks


class Writer(Protocol):
    """What a rank has to write."""

    @property
    def nbytes(self) -> int:
        """Of its tensors."""

    def copied(self, shelf: Shelf) -> "Writer":
        """The same on a shelf, so that it can be written while the originals change."""

    def write(self, folder: Path) -> Sequence[Path]:
        """Write this rank's files into a directory that is there, and say which.

        Raises:
            OSError, SafetensorError: they cannot be written.
        """


class Trained(Protocol):
    """A model that knows which of its weights training changes."""

    @property
    def model(self) -> PreTrainedModel:
        """The model whose parameters the optimiser has; of several ranks, this one's part."""

    def weights_writer(self, ranks: Ranks) -> Writer:
        """Agree with all ranks on who writes what of the weights that training changes, exactly as they are."""
