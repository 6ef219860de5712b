"""A checkpoint on its way to disk while the run goes on: one at a time, its end waited for, its error never lost."""

import threading
import time
from collections.abc import Callable

from paceline.checkpoint.finding import Checkpoint
from paceline.checkpoint.saving import Taken
from paceline.errors import StorageError
from paceline.parallel import Words
from paceline.pulse import PULSE

SAVE_SECONDS = 1800.0
"""That a checkpoint which is written in the background is waited for."""
BEAT_SECONDS = 1.0
"""Between two signs of progress while it is."""


class Writing:
    """One checkpoint that a thread writes."""

    def __init__(self, write: Callable[[], Checkpoint], *, name: str) -> None:
        """Begin; `name` is what an error says of it."""
        self._write, self._name = write, name
        self._checkpoint: Checkpoint | None = None
        self._error: BaseException | None = None
        # of a process that ends at once it leaves a draft, which is no checkpoint: nothing has to wait for it
        self._thread = threading.Thread(target=self._run, name=f"saving {name}", daemon=True)
        self._thread.start()

    def result(self, *, wait: bool, seconds: float = SAVE_SECONDS) -> Checkpoint | None:
        """The checkpoint once it is on disk; None: it is not yet, and nobody wished to `wait`.

        Raises:
            StorageError: it could not be written, or is not after so many seconds.
            RankLost: another rank is gone, or silent for too long.
        """
        until = time.monotonic() + (seconds if wait else 0)
        while (left := until - time.monotonic()) > 0 and self._thread.is_alive():
            PULSE.beat("run", f"waits for {self._name}")  # up to a deadline of its own: no standstill
            self._thread.join(min(left, BEAT_SECONDS))
        if self._thread.is_alive():
            if not wait:
                return None
            raise StorageError(
                f"{self._name} is not on disk after {seconds:g} s; look at the disk, then resume from the one before it"
            )
        if self._error is not None:
            raise self._error
        return self._checkpoint

    def _run(self) -> None:
        try:
            self._checkpoint = self._write()
        except BaseException as error:  # noqa: BLE001 - not swallowed: `result` raises it where the run can hear it
            self._error = error


class Desk:
    """What a rank is saving: nothing, or one checkpoint, in a thread where it is of a copy."""

    def __init__(self) -> None:
        """Nothing is under way."""
        self._writing: Writing | None = None
        self._written: Checkpoint | None = None

    def begin(self, taken: Taken, words: Words) -> None:
        """Write it, beside the run or, where it is no copy, before this returns.

        Raises:
            StorageError: it could not be written.
            RankLost: another rank is gone, or silent for too long.
        """
        if taken.is_copied:
            self._writing = Writing(lambda: taken.write(words), name=f"the checkpoint of step {taken.progress.step}")
        else:
            self._written = taken.write(words)

    def take(self, *, wait: bool) -> Checkpoint | None:
        """The checkpoint that is on disk since this was last asked; see `Writing.result`."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            self._written = writing.result(wait=wait)
            if self._written is None:
                self._writing = writing
        found, self._written = self._written, None
        return found
