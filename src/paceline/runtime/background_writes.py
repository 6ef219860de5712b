"""Writes in a thread while the run continues; its end is awaited, and its errors are raised."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from paceline.errors import StorageError
from paceline.runtime.activity import ACTIVITY

HEARTBEAT_SECONDS = 1.0
"""Seconds between two heartbeats while waiting: a wait up to its own deadline is no standstill."""
T = TypeVar("T")


class BackgroundWrite(Generic[T]):
    """A write in a thread, and its result."""

    def __init__(self, write: Callable[[], T], *, name: str) -> None:
        """Begin the write; `name` is what error messages call it."""
        self._write, self._name = write, name
        self._written: T | None = None
        self._error: BaseException | None = None
        # a daemon: a process that ends at once leaves a draft, which is never loaded
        self._thread = threading.Thread(target=self._run, name=f"writing {name}", daemon=True)
        self._thread.start()

    def result(self, *, wait: bool, seconds: float) -> T | None:
        """Return the result once it is on disk; None if it is not yet and `wait` is False.

        Raises:
            StorageError: it is not on disk after `seconds`.
            Exception: whatever the call has raised.
        """
        if not self.ends_within(seconds if wait else 0):
            if not wait:
                return None
            raise StorageError(
                f"{self._name} is not on disk after {seconds:g} s",
                remedies=["look at the disk"],
                then="--resume the run",
            )
        if self._error is not None:
            raise self._error
        return self._written

    @property
    def is_over(self) -> bool:
        """True if the call has returned or raised."""
        return not self._thread.is_alive()

    def ends_within(self, seconds: float) -> bool:
        """Wait up to `seconds`; return True if the call has returned or raised by then."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and self._thread.is_alive():
            ACTIVITY.beat("run", f"waits for {self._name}")
            self._thread.join(min(left, HEARTBEAT_SECONDS))
        return self.is_over

    def _run(self) -> None:
        try:
            self._written = self._write()
        except BaseException as error:  # noqa: BLE001 - not swallowed: `result` raises it where the run can hear it
            self._error = error
