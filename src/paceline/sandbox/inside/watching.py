"""Limits on a running program that neither the kernel nor a file system of its own enforces."""

import contextlib
import os
import stat
from collections.abc import Iterator

from paceline.processes.scratch import OPEN_DIRECTORY

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
