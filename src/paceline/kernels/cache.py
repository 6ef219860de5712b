"""Where what is made once per machine is kept: compiled kernels, unpacked models."""

import functools
import os
import tempfile
from pathlib import Path

WRITABLE_BY_OTHERS = 0o022


def cache_directory() -> Path:
    """Return a directory of this user alone: anyone who can write there can run code as this user."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        directory = base / "paceline"
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = directory.stat()
        if found.st_uid == os.getuid() and not found.st_mode & WRITABLE_BY_OTHERS and os.access(directory, os.W_OK):
            return directory
    except OSError:
        pass
    return _own_directory()


@functools.cache
def _own_directory() -> Path:
    """Return the one directory that stands in for the cache as long as this process runs."""
    return Path(tempfile.mkdtemp(prefix="paceline-native-"))
