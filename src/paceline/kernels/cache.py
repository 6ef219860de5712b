"""Cache directory of files that are made once per machine: compiled kernels, unpacked models."""

import functools
import os
import tempfile
from pathlib import Path

WRITABLE_BY_OTHERS = 0o022


def cache_directory() -> Path:
    """Return a directory that only this user can write to, as libraries are loaded from it."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        directory = base / "paceline"
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = directory.stat()
        if status.st_uid == os.getuid() and not status.st_mode & WRITABLE_BY_OTHERS and os.access(directory, os.W_OK):
            return directory
    except OSError:
        pass
    return _own_directory()


@functools.cache
def _own_directory() -> Path:
    """Return a temporary directory in place of the cache, the same throughout this process."""
    return Path(tempfile.mkdtemp(prefix="paceline-native-"))
