"""Scratch directories, and emptying one, whatever a program has left in it. The standard library alone."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Sequence
from itertools import count

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make_empty(path: str) -> None:
    """Remove everything below `path`, without following a link and in time linear in the number of entries.

    What lies in a directory is moved up to `path` before that directory is removed, so that nothing is opened further
    down. Below Landlock's rules every opening walks up to the root, so descending a deep tree would take time quadratic
    in its depth. Nobody else may be writing there any more."""
    os.chmod(path, 0o700)
    top = os.open(path, OPEN_DIRECTORY)
    waiting = _directories_left(top)
    taken = set(waiting)
    free_names = (str(number) for number in count() if str(number) not in taken)
    while waiting:
        name = waiting.pop()
        here = os.open(name, OPEN_DIRECTORY, dir_fd=top)
        for inner in _directories_left(here):
            moved = next(free_names)
            os.rename(inner, moved, src_dir_fd=here, dst_dir_fd=top)
            waiting.append(moved)
        os.close(here)
        os.rmdir(name, dir_fd=top)
    os.close(top)


def _directories_left(directory: int) -> list[str]:
    """Remove all files of a directory; return its directories, opened to their owner."""
    left = []
    for name in os.listdir(directory):
        try:
            os.unlink(name, dir_fd=directory)
        except (IsADirectoryError, PermissionError):
            os.chmod(name, 0o700, dir_fd=directory)
            left.append(name)
    return left


PREFIX = "paceline-scratch-held-"


def hold_new(directory: str) -> str:
    """Make a new directory in `directory`, locked until this process and all its forks have ended; or raise OSError."""
    while True:
        path = os.path.realpath(tempfile.mkdtemp(prefix=PREFIX, dir=directory))
        try:
            descriptor = os.open(path, OPEN_DIRECTORY)
            if _is_locked(descriptor) and os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return path
            os.close(descriptor)
        except FileNotFoundError:  # another process removed it as abandoned before it was locked
            continue
        except OSError:  # a file system without locks, where no process removes it as abandoned
            return path


def remove_left(directory: str, users_of_root: Sequence[tuple[int, int]] = ()) -> None:
    """Remove unlocked scratch directories of this user, and for root those of users in these ranges."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        paths = [entry.path for entry in entries if entry.name.startswith(PREFIX)]
        for path in paths:
            with contextlib.suppress(OSError):  # another start removes it too, or its rights have been taken away
                _remove_if_left(path, users_of_root if os.geteuid() == 0 else ())


def _remove_if_left(path: str, users: Sequence[tuple[int, int]]) -> None:
    descriptor = os.open(path, OPEN_DIRECTORY)
    try:
        owner = os.fstat(descriptor).st_uid
        is_ours = owner == os.geteuid() or any(low <= owner < high for low, high in users)
        if is_ours and _is_locked(descriptor):
            make_empty(path)
            os.rmdir(path)
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    """Try to lock a descriptor: True if this process has the lock; OSError if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
