"""Scratch directories in the host's temporary directory, each locked while it is used.

A monitor that is killed leaves its directory behind; the next one to start removes it.
"""

import contextlib
import fcntl
import os
import tempfile

from paceline.sandbox.inside.confining import OWNERS, OWNERS_OF_CONTAINERS
from paceline.sandbox.inside.scratch import OPEN_DIRECTORY, make_empty

PREFIX = "paceline-scratch-held-"


def hold_new(directory: str) -> str:
    """Make a new directory in `directory`, locked until this process and all its forks have ended.

    Raises:
        OSError: it cannot be made.
    """
    while True:
        path = os.path.realpath(tempfile.mkdtemp(prefix=PREFIX, dir=directory))
        try:
            held = os.open(path, OPEN_DIRECTORY)
            if _is_locked(held) and os.path.samestat(os.fstat(held), os.stat(path)):
                return path
            os.close(held)
        except FileNotFoundError:  # somebody took it for left, before it was held
            continue
        except OSError:  # a file system without locks: then nobody takes it for left either
            return path


def remove_left(directory: str) -> None:
    """Remove unlocked scratch directories of this user, and of those that root's programs run as."""
    with contextlib.suppress(OSError), os.scandir(directory) as found:
        names = [entry.path for entry in found if entry.name.startswith(PREFIX)]
        for path in names:
            with contextlib.suppress(OSError):  # another start removes it too, or its rights have been taken away
                _remove_if_left(path)


def _remove_if_left(path: str) -> None:
    held = os.open(path, OPEN_DIRECTORY)
    try:
        if _is_ours(os.fstat(held).st_uid) and _is_locked(held):
            make_empty(path)
            os.rmdir(path)
    finally:
        os.close(held)


def _is_locked(descriptor: int) -> bool:
    """Try to lock a descriptor; return True if this process has the lock.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_ours(owner: int) -> bool:
    numbers = (OWNERS, OWNERS_OF_CONTAINERS) if os.geteuid() == 0 else ()
    return owner == os.geteuid() or any(low <= owner < high for low, high in numbers)
