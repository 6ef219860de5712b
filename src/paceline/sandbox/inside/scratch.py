"""A directory made empty, whatever a program has left in it."""

import os

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make_empty(path: str) -> None:
    """Remove everything below `path`, without following a link and in time linear in the number of entries.

    One directory is open at a time, and the way back up is `..`: so neither depth nor the length of a path matters.
    Nobody else may be writing there any more.
    """
    os.chmod(path, 0o700)
    here = os.open(path, OPEN_DIRECTORY)
    above: list[tuple[str, list[str]]] = []
    inner = _directories_left(here)
    while inner or above:
        if inner:
            name = inner.pop()
            here = _exchange(here, name)
            above.append((name, inner))
            inner = _directories_left(here)
        else:
            here = _exchange(here, "..")
            name, inner = above.pop()
            os.rmdir(name, dir_fd=here)
    os.close(here)


def _directories_left(directory: int) -> list[str]:
    """Remove all files of a directory; the directories in it, opened to their owner."""
    left = []
    for name in os.listdir(directory):
        try:
            os.unlink(name, dir_fd=directory)
        except (IsADirectoryError, PermissionError):
            os.chmod(name, 0o700, dir_fd=directory)
            left.append(name)
    return left


def _exchange(directory: int, name: str) -> int:
    """Open a neighbouring directory in the place of this one."""
    other = os.open(name, OPEN_DIRECTORY, dir_fd=directory)
    os.close(directory)
    return other
