"""Files of a run: a line counts once its newline is there, a whole file appears by rename, and both are synced.

A write in the background takes a thread while the run continues; its end is awaited, and its errors are raised.
"""

import errno
import json
import logging
import math
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, Generic, TypeVar

from paceline.errors import CheckpointError, StorageError
from paceline.metrics.definitions import Record
from paceline.runtime.activity import ACTIVITY
from paceline.runtime.whole_files import open_to_write, write_whole

LOGGER = logging.getLogger(__name__)
GROWING = ("metrics.jsonl", "evals.jsonl", "journal.jsonl")
"""Files of a run that grow by lines."""
_DRAFT = re.compile(r"\.[0-9a-f]{16}\.new")
_STEP_FILE = re.compile(r"(?:.+-)?step-(\d{6,})\.jsonl")

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False).encode
"""Encoder for all records: `json.dumps` makes one per call, and looks for cycles that no record has."""


def json_line(record: Record) -> bytes:
    """Encode one JSON object and a newline; ValueError, naming the key, if a number is not finite."""
    try:
        text = _encode(record)
    except ValueError:
        _refuse_not_finite(record, "")
        raise
    # lone surrogates, which a text may hold, become JSON's own \udXXX escapes
    return (text + "\n").encode("utf-8", "backslashreplace")


def append(file: Path, line: bytes) -> None:
    """Append a line, which then survives a crash; StorageError, and nothing half-written, if the disk refuses."""
    try:
        with open(open_to_write(file, os.O_APPEND | os.O_CREAT), "r+b", buffering=0) as stream:
            start = stream.seek(0, os.SEEK_END)
            try:
                if stream.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(stream.fileno())
            except OSError:
                stream.truncate(start)
                raise
    except OSError as error:
        raise _refused(file, error) from error


def write_or_explain(file: Path, content: bytes) -> None:
    """Write a whole file or none of it; StorageError if the disk refuses."""
    try:
        write_whole(file, content)
    except OSError as error:
        raise _refused(file, error) from error


def link_or_copy(file: Path, target: Path) -> None:
    """Hard-link a file that is never modified in place, or copy it where the disk has no hard links.

    Either name may be removed without the other.
    """
    try:
        os.link(file, target)
    except FileExistsError:  # a copy would be written into what is there
        raise
    except OSError:
        shutil.copyfile(file, target)


def remove_drafts(folder: Path) -> None:
    """Remove the unfinished files of a killed process."""
    for file in folder.glob(".*.new"):
        if _DRAFT.fullmatch(file.name):
            file.unlink(missing_ok=True)


def holds_something(path: Path) -> bool:
    """Return True for a file, and for a directory that is not empty."""
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def cut_torn_line(file: Path) -> int:
    """Cut off an unfinished last line; return the number of lines cut, 0 or 1."""
    if not file.is_file():
        return 0
    content = file.read_bytes()
    complete = content.rfind(b"\n") + 1
    if complete == len(content):
        return 0
    descriptor = open_to_write(file, 0)
    try:
        os.ftruncate(descriptor, complete)
    finally:
        os.close(descriptor)
    return 1


def whole_lines(file: Path) -> list[bytes]:
    """Return the committed lines without their newlines; none if the file does not exist."""
    # What follows the last newline is empty, or a line that was never committed.
    return file.read_bytes().split(b"\n")[:-1] if file.is_file() else []


def finite_int(text: str) -> int:
    """Parse a whole number of a run's record; ValueError for one beyond the range of floats, which no run writes."""
    if math.isinf(float(text)):
        raise ValueError(f"{text[:20]}... has {len(text)} digits")
    return int(text)


def read_records(
    file: Path,
    *,
    mark: str | None = None,
    needs: Mapping[str, type | UnionType] = MappingProxyType({}),
    parse_int: Callable[[str], int] = int,
) -> list[dict[str, Any]]:
    """Return the objects of a file, in order, without those that lack `mark`: lines of other programs, reported once.

    `parse_int`: `finite_int` for records without text of a model, which may hold any number.

    CheckpointError, with file and line, for one that is no JSON object or has no value of the type that it `needs`.
    """
    records = list[dict[str, Any]]()
    for number, line in enumerate(whole_lines(file), start=1):
        try:
            record = json.loads(line, parse_int=parse_int)
        except (ValueError, RecursionError):
            record = None
        if mark is not None and isinstance(record, dict) and mark not in record:
            _name_foreign_lines(file)
            continue
        lacking = [
            name for name, kind in needs.items() if type(record) is dict and not isinstance(record.get(name), kind)
        ]
        if lacking:
            raise CheckpointError(
                f"{file}, line {number}, has no {lacking[0]} as it was written; restore the file from a copy, or "
                "delete that line"
            )
        if not isinstance(record, dict):
            raise CheckpointError(
                f"{file}, line {number}, is not a JSON object: {line[:60].decode(errors='replace')!r}; "
                "restore the file from a copy, or delete that line"
            )
        records.append(record)
    return records


@cache
def _name_foreign_lines(file: Path) -> None:
    LOGGER.warning("%s has lines that are no records of the run, which are left out; log to a file of your own", file)


def step_files(folder: Path) -> dict[Path, int]:
    """Return the files of a folder that belong to a step, with its number."""
    matches = ((file, _STEP_FILE.fullmatch(file.name)) for file in folder.glob("*.jsonl") if file.name[0] != ".")
    return {file: int(match[1]) for file, match in matches if match}


def _refuse_not_finite(value: object, key: str) -> None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _refuse_not_finite(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _refuse_not_finite(inner, f"{key}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{key} must be a finite number to be recorded, got {value}")


def _refused(file: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{file} cannot be written ({error.strerror})", remedies=["make room for it"], then="--resume the run"
    )


HEARTBEAT_SECONDS = 1.0
"""Seconds between two heartbeats while waiting: a wait up to its own deadline is no standstill."""
T = TypeVar("T")


class BackgroundWrite(Generic[T]):
    """A write in a thread, and its result."""

    def __init__(self, write: Callable[[], T], *, name: str) -> None:
        """Begin the write; `name` is what error messages call it."""
        self._write, self._name = write, name
        self._written: T | None = None
        self._error: BaseException | None = None
        # a daemon: a process that ends at once leaves a draft, which is never loaded
        self._thread = threading.Thread(target=self._run, name=f"writing {name}", daemon=True)
        self._thread.start()

    def result(self, *, wait: bool, seconds: float) -> T | None:
        """Return the result once it is on disk; None if it is not yet and `wait` is False.

        Raises:
            StorageError: it is not on disk after `seconds`.
            Exception: whatever the call has raised.
        """
        if not self.ends_within(seconds if wait else 0):
            if not wait:
                return None
            raise StorageError(
                f"{self._name} is not on disk after {seconds:g} s",
                remedies=["look at the disk"],
                then="--resume the run",
            )
        if self._error is not None:
            raise self._error
        return self._written

    @property
    def is_over(self) -> bool:
        """True if the call has returned or raised."""
        return not self._thread.is_alive()

    def ends_within(self, seconds: float) -> bool:
        """Wait up to `seconds`; return True if the call has returned or raised by then."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and self._thread.is_alive():
            ACTIVITY.beat("run", f"waits for {self._name}")
            self._thread.join(min(left, HEARTBEAT_SECONDS))
        return self.is_over

    def _run(self) -> None:
        try:
            self._written = self._write()
        except BaseException as error:  # noqa: BLE001 - not swallowed: `result` raises it where the run can hear it
            self._error = error
