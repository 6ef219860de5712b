"""Rows of a large JSON lines file: the start of each line is kept, and a line is read when its row is needed."""

import codecs
import gzip
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from paceline.data.rows import Row, RowsOnDemand
from paceline.errors import DataError

CHUNK = 1 << 24
NEWLINE = ord("\n")
BLANKS = np.frombuffer(b" \t\r\n\v\f", dtype=np.uint8)


class LineRows(RowsOnDemand):
    """The rows of a file without its blank lines; a compressed file is first unpacked into a temporary one.

    Eight bytes a line, twice, are all that is kept in memory.
    """

    def __init__(self, path: Path, read_line: Callable[[bytes, int], Row], *, size: int | None) -> None:
        """`size`: rows to take (None: all); `read_line` makes a row of a line and its number, from 1."""
        self._path, self._read_line = path, read_line
        self._file = _unpacked(path) if path.name.lower().endswith(".gz") else path.open("rb")
        self._state = _state(self._file)
        starts, is_blank = _lines(self._file)
        self._starts = starts
        self._lines = np.flatnonzero(~is_blank)[:size]

    def __len__(self) -> int:
        return len(self._lines)

    def at(self, place: int) -> Row:
        """Read one line.

        Raises:
            DataError: the file was changed since it was opened.
        """
        line = int(self._lines[place])
        start, end = int(self._starts[line]), int(self._starts[line + 1])
        # not mapped into memory: another process that shortens a mapped file would kill this one
        content = os.pread(self._file.fileno(), end - start, start)
        if _state(self._file) != self._state:
            raise DataError(
                f"--dataset {self._path}: was changed while a run was reading it; start again, and let runs have files "
                "of their own"
            )
        return self._read_line(content, line + 1)

    def digest(self) -> str:
        """Hash all bytes up to the last row, and the file's name, which is part of the rows' names."""
        digest, left = hashlib.sha256(self._path.name.encode() + b"\n"), int(self._starts[self._lines[-1] + 1])
        self._file.seek(0)
        while left and (chunk := self._file.read(min(CHUNK, left))):
            digest.update(chunk)
            left -= len(chunk)
        return digest.hexdigest()


def _unpacked(path: Path) -> BinaryIO:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - stays open as long as its rows
    with gzip.open(path, "rb") as packed:
        shutil.copyfileobj(packed, file, CHUNK)
    file.flush()
    return file


def _state(file: BinaryIO) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns


def _lines(file: BinaryIO) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the start of each line, with the end of the file last, and a mask of blank lines."""
    starts, heads = [np.zeros(1, dtype=np.int64)], list[NDArray[np.uint8]]()
    offset, is_new = 0, True
    file.seek(0)
    while chunk := file.read(CHUNK):
        content = np.frombuffer(chunk, dtype=np.uint8)
        found = np.flatnonzero(content == NEWLINE) + 1
        heads += [content[:1]] * is_new + [content[found[found < len(content)]]]
        starts.append(found + offset)
        offset, is_new = offset + len(chunk), chunk.endswith(b"\n")
    begins = np.concatenate(starts)
    if begins[-1] != offset:
        begins = np.append(begins, offset)
    is_blank = np.zeros(len(begins) - 1, dtype=np.bool_)
    # a line that begins with whitespace may be blank; a byte order mark before the first line is not part of it
    for line in {0, *np.flatnonzero(np.isin(np.concatenate(heads), BLANKS)).tolist()}:
        text = os.pread(file.fileno(), int(begins[line + 1] - begins[line]), int(begins[line]))
        is_blank[line] = not text.removeprefix(codecs.BOM_UTF8).strip()
    return begins, is_blank
