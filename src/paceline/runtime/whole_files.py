"""Files that appear whole or not at all, survive a crash once written, and are never written through a link."""

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path


def write_whole(file: Path, content: bytes) -> None:
    """Write a whole file or none of it; OSError if the disk refuses.

    The temporary name is random, so a prepared link cannot capture the write, and a link in the place of `file` is
    replaced, not followed.
    """
    temporary = file.with_name(f".{secrets.token_hex(8)}.new")
    try:
        with open(open_to_write(temporary, os.O_CREAT | os.O_EXCL), "r+b", buffering=0) as stream:
            written = 0
            while written < len(content):
                written += stream.write(memoryview(content)[written:])
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync(file.parent)  # the rename itself is on disk only once the directory is


def open_to_write(file: Path, flags: int) -> int:
    """Return a descriptor of a regular file; OSError for a link or a device, neither followed nor waited for."""
    descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file")
    return descriptor


def sync(path: Path) -> None:
    """Flush a file or a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
