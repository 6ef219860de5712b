"""Emptying of a directory, whatever a program has left in it."""

import os
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
