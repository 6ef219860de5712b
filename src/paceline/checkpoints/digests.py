"""Files on their way to disk and from it: synced, known again by their hash, removed so that no half looks whole."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

Fingerprint = dict[str, str | int]
"""Size in bytes and SHA-256 of a file."""


def files(folder: Path) -> Iterator[str]:
    """All files below a directory, relative to it."""
    return iter(sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()))


def file_size(path: Path) -> int:
    """In bytes."""
    return path.stat().st_size


def fingerprint(path: Path) -> Fingerprint:
    """Of the file as it is."""
    with path.open("rb") as file:
        return {"size": file_size(path), "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def sync(path: Path) -> None:
    """Have a file or a directory on disk before this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def discard(place: Path) -> None:
    """Rename first: a checkpoint that is half removed must not look whole."""
    doomed = place.with_name(f"discarded-{place.name}")
    place.rename(doomed)
    shutil.rmtree(doomed)
