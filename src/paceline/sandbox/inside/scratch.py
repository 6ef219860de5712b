"""Scratch directories of programs: made, watched where nothing else limits what lies in them, and emptied.

A program may leave anything in its directory, and change it while it is looked at.
"""

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from itertools import count

from paceline.sandbox.inside.confining import OWNERS, OWNERS_OF_CONTAINERS

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
            held = os.open(path, OPEN_DIRECTORY)
            if _is_locked(held) and os.path.samestat(os.fstat(held), os.stat(path)):
                return path
            os.close(held)
        except FileNotFoundError:  # another process removed it as abandoned before it was locked
            continue
        except OSError:  # a file system without locks, where no process removes it as abandoned
            return path


def remove_left(directory: str) -> None:
    """Remove unlocked scratch directories of this user, and of those that root's programs run as."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        names = [entry.path for entry in entries if entry.name.startswith(PREFIX)]
        for path in names:
            with contextlib.suppress(OSError):  # another start removes it too, or its rights have been taken away
                _remove_if_left(path)


def _remove_if_left(path: str) -> None:
    held = os.open(path, OPEN_DIRECTORY)
    try:
        owner = os.fstat(held).st_uid
        numbers = (OWNERS, OWNERS_OF_CONTAINERS) if os.geteuid() == 0 else ()
        is_ours = owner == os.geteuid() or any(low <= owner < high for low, high in numbers)
        if is_ours and _is_locked(held):
            make_empty(path)
            os.rmdir(path)
    finally:
        os.close(held)


def _is_locked(descriptor: int) -> bool:
    """Try to lock a descriptor: True if this process has the lock; OSError if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


MOST_THREADS = 256
MOST_BYTES = 64 << 20
MOST_ENTRIES = 2000
FIRST_OWN_DESCRIPTOR = 4
"""First descriptor that may be the program's own; below are the standard streams and the report, unnamed too."""
DELETED = b" (deleted)\n"


def excess(pid: int, scratch: str, largest_file: int) -> str | None:
    """Return `threads`, `files`, or None if all is well; `largest_file` is the limit of one file in bytes."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # the program has ended
        return None
    if len(threads) > MOST_THREADS:
        return "threads"
    return "files" if is_overfull(scratch, bytes_without_a_name(pid, threads, scratch, largest_file)) else None


def is_overfull(scratch: str, total: int) -> bool:
    """Return True if files take too much besides `total`, or cannot be seen: without rights, too deep, moved."""
    entries, waiting = 0, [scratch]
    try:
        while waiting:
            path = waiting.pop()
            with contextlib.suppress(FileNotFoundError):  # removed in the meantime
                for name, status in listed(path, scratch):
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(f"{path}/{name}")
                    entries, total = entries + 1, total + 512 * status.st_blocks
                    if total > MOST_BYTES or entries > MOST_ENTRIES:
                        return True
    except OSError:
        return True
    return total > MOST_BYTES


def listed(path: str, scratch: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the entries of a directory; the program may replace any part of the path by a link to the host."""
    directory = os.open(path, OPEN_DIRECTORY)
    try:
        if not f"{os.readlink(f'/proc/self/fd/{directory}')}/".startswith(f"{scratch}/"):
            raise NotADirectoryError(path)
        with os.scandir(directory) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    yield entry.name, entry.stat(follow_symlinks=False)
    finally:
        os.close(directory)


def bytes_without_a_name(pid: int, threads: list[str], scratch: str, largest_file: int) -> int:
    """Return the bytes of deleted files still open or mapped; the size of one that is only mapped cannot be seen.

    Descriptors and memory are common to all threads, but an ended one shows neither.
    """
    for thread in reversed(threads):
        with contextlib.suppress(OSError):
            if (mapped := _deleted_and_mapped(f"/proc/{pid}/task/{thread}/maps", scratch)) is not None:
                opened = _deleted_and_open(f"/proc/{pid}/task/{thread}/fd")
                return sum(opened.values()) + largest_file * len(mapped - opened.keys())
    return 0


def _deleted_and_mapped(maps: str, scratch: str) -> set[int] | None:
    """Return the inodes of deleted files that are mapped; None if the process has no memory any more."""
    inodes, lines = set(), 0
    with open(maps, "rb") as file:
        for lines, line in enumerate(file, 1):  # noqa: B007
            if line.endswith(DELETED) and b" " + os.fsencode(scratch) + b"/" in line:
                inodes.add(int(line.split(None, 5)[4]))
    return inodes if lines else None


def _deleted_and_open(descriptors: str) -> dict[int, int]:
    sizes = {}
    for descriptor in os.listdir(descriptors):
        with contextlib.suppress(OSError):  # closed in the meantime
            status = os.stat(f"{descriptors}/{descriptor}")
            if status.st_nlink == 0 and int(descriptor) >= FIRST_OWN_DESCRIPTOR:
                sizes[status.st_ino] = 512 * status.st_blocks
    return sizes
