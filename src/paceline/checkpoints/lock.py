"""Lock of a run directory: one writer at a time, and the mark that Paceline made the directory.

While a writer lives, `.lock` is locked. Its text names the writer, stays afterwards and is the mark.
"""

import fcntl
import os
import re
import socket
import threading
from pathlib import Path

from paceline.errors import CheckpointError

LOCK = ".lock"

_MARK = re.compile(r"process \d+ on host .*\n")
_HELD: set[tuple[int, int, int]] = set()
"""Process, device and inode of every lock held here; a forked child holds none of its parent's."""
_TAKING = threading.Lock()


class WriteLock:
    """Lock of a run directory's only writer, until `release` or the end of the process.

    A POSIX record lock, not flock: it belongs to the process, so no forked worker that outlives a killed run keeps a
    resumed run out. The system grants a process its own lock again, and drops it as soon as any descriptor of the file
    is closed. So locks held by this process are remembered and their files never opened a second time."""

    def __init__(self, directory: Path) -> None:
        """Take the lock.

        Raises:
            CheckpointError: a writer in this process or another has it.
            OSError: the directory cannot be written.
        """
        file, me = directory / LOCK, f"process {os.getpid()} on host {socket.gethostname()}\n"
        with _TAKING:
            if _is_held_here(file):
                raise _in_use(directory, me)
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                holder = os.read(descriptor, 4096).decode(errors="replace")
                os.close(descriptor)
                raise _in_use(directory, holder) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, me.encode(), 0)
            self._key = _key(os.fstat(descriptor))
            _HELD.add(self._key)
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        with _TAKING:
            if self._descriptor is None:
                return
            _HELD.discard(self._key)
            os.close(self._descriptor)
            self._descriptor = None


def has_mark(directory: Path) -> bool:
    """Return True if a run of Paceline has held the lock of a directory; another program's `.lock` is no mark."""
    file = directory / LOCK
    with _TAKING:
        # reading a lock that this process holds would release it
        if _is_held_here(file):
            return True
        return file.is_file() and _MARK.fullmatch(file.read_text(encoding="utf-8", errors="replace")) is not None


def _is_held_here(file: Path) -> bool:
    return file.exists() and _key(file.stat()) in _HELD


def _key(found: os.stat_result) -> tuple[int, int, int]:
    return os.getpid(), found.st_dev, found.st_ino


def _in_use(directory: Path, holder: str) -> CheckpointError:
    return CheckpointError(
        f"{directory} is in use by {holder.strip() or 'another process'}; wait until it ends or give another directory"
    )
