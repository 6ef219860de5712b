"""What a checkpoint knows of a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from transformers import PreTrainedModel

from paceline.models.parallel.ranks import Ranks
from paceline.models.parallel.staging import StagingBuffers


class Writer(Protocol):
    """What a rank has to write."""

    @property
    def nbytes(self) -> int:
        """Of its tensors."""

    def copied(self, staging: StagingBuffers) -> "Writer":
        """Copy the tensors into staging buffers, so that they can be written while training continues."""

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
