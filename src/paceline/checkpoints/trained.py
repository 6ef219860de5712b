"""The interface of a model to checkpoints."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from transformers import PreTrainedModel

from paceline.models.parallel.ranks import Ranks
from paceline.models.parallel.staging import StagingBuffers


class Writer(Protocol):
    """Writer of a rank's part of a checkpoint."""

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""

    def copied(self, staging: StagingBuffers) -> "Writer":
        """Return a copy in staging buffers, which can be written while the originals change."""

    def write(self, folder: Path) -> Sequence[Path]:
        """Write this rank's files into an existing directory and return them.

        Raises:
            OSError, SafetensorError: they cannot be written.
        """


class Trained(Protocol):
    """A model that knows which of its weights are trained."""

    @property
    def model(self) -> PreTrainedModel:
        """Model whose parameters the optimiser has; with several ranks, this rank's part."""

    def weights_writer(self, ranks: Ranks) -> Writer:
        """Agree with all ranks on who writes which of the trained weights, exactly as they are."""
