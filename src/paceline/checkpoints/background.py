"""A checkpoint on its way to disk while the run goes on: one at a time, its end waited for, its error never lost."""

from paceline.checkpoints.finding import Checkpoint
from paceline.checkpoints.saving import Taken
from paceline.models.parallel.ranks import TextGroup
from paceline.models.parallel.staging import StagingBuffers
from paceline.runtime.background_writes import Writing

SAVE_SECONDS = 1800.0
"""That a checkpoint which is written in the background is waited for."""


class CheckpointWriter:
    """What a rank is saving: nothing, or one checkpoint, in a thread where it is of a copy."""

    def __init__(self, staging: StagingBuffers | None) -> None:
        """Write checkpoints in the background from copies in `staging`; None: write while training waits."""
        self.staging = staging
        self._writing: Writing[Checkpoint] | None = None
        self._written: Checkpoint | None = None

    def begin(self, taken: Taken, group: TextGroup) -> None:
        """Write it, beside the run or, where it is no copy, before this returns.

        Raises:
            StorageError: it could not be written.
            RankLost: another rank is gone, or silent for too long.
        """
        if taken.is_copied:
            self._writing = Writing(lambda: taken.write(group), name=f"the checkpoint of step {taken.state.step}")
        else:
            self._written = taken.write(group)

    def take(self, *, wait: bool) -> Checkpoint | None:
        """The checkpoint that is on disk since this was last asked; None: there is none, and nobody wished to `wait`.

        Raises:
            StorageError: it could not be written, or is not in time.
            RankLost: another rank is gone, or silent for too long.
        """
        if self._writing is not None and (wait or self._writing.is_over):
            try:
                self._written = self._writing.result(wait=wait, seconds=SAVE_SECONDS)
            finally:
                if self._writing.is_over:  # else the write still reads the staging buffers
                    self._writing = None
        found, self._written = self._written, None
        return found
