"""Journal of committed rollouts: one line per step, appended once its file is on disk.

A line names that file with its size and SHA-256 and ends in a checksum of its own, so damage to either is detected.
"""

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.checkpoints.digests import content_digest
from paceline.checkpoints.run_files import json_line, whole_lines
from paceline.metrics.definitions import Record

NEEDS = {"step": int, "bytes": int, "sha256": str}
"""Keys that every line has, with their types."""
_MARK = b',"crc32":"'


@dataclass(frozen=True, kw_only=True, slots=True)
class Committed:
    """Steps that need not be sampled again."""

    entries: tuple[dict[str, Any], ...] = ()
    """Journal lines in the order of the steps, without gaps."""
    faults: tuple[str, ...] = ()
    """A sentence for each damage found and its consequence."""


def seal(record: Record) -> bytes:
    """Encode a record as a line with its checksum."""
    body = json_line(record)[:-2]
    return body + _MARK + f'{zlib.crc32(body):08x}"}}\n'.encode()


def unseal(line: bytes) -> dict[str, Any] | None:
    """Decode a line without its newline; None if it is not what was written."""
    body, mark, check = line.rpartition(_MARK)
    if not mark or check != f'{zlib.crc32(body):08x}"}}'.encode():
        return None
    try:
        record: dict[str, Any] = json.loads(body + b"}")
    except (ValueError, RecursionError):
        return None
    return record if all(type(record.get(name)) is kind for name, kind in NEEDS.items()) else None


def is_whole(entry: Record, content: bytes | None) -> bool:
    """Return True if the content of a file of rollouts matches its line; None: the file is missing."""
    return content is not None and content_digest(content) == {name: entry[name] for name in ("bytes", "sha256")}


def read_journal(file: Path) -> tuple[dict[int, dict[str, Any]], list[str]]:
    """Read the records by step, and a sentence for every damaged line."""
    records, faults = dict[int, dict[str, Any]](), list[str]()
    for number, line in enumerate(whole_lines(file), start=1):
        record = unseal(line)
        if record is None:
            faults.append(f"{file}, line {number}, is damaged: what it said of a step's rollouts is lost")
        else:
            records[record["step"]] = record
    return records, faults


def committed_after(file: Path, step: int, content_of: Callable[[int], bytes | None]) -> Committed:
    """Return the steps right after `step` whose lines and files are whole, up to the first that is not.

    `content_of` returns the content of a step's file, None without one. Steps after a gap cannot be used, as the data
    order depends on the missing step.
    """
    records, faults = read_journal(file)
    entries = list[dict[str, Any]]()
    number = step + 1
    while (entry := records.get(number)) is not None:
        if not is_whole(entry, content_of(number)):
            faults.append(f"the rollouts of step {number} are not as {file} has them: they are made again")
            break
        entries.append(entry)
        number += 1
    if entries or faults:
        later = [later_step for later_step in records if later_step >= number]
        if later:
            faults.append(f"the rollouts of steps {number} to {max(later)} are made again")
    return Committed(entries=tuple(entries), faults=tuple(faults))


def lines_of(file: Path, is_wanted: Callable[[int], bool]) -> bytes:
    """Return the whole lines of some steps unchanged, newlines included."""
    unsealed = ((line, unseal(line)) for line in whole_lines(file))
    return b"".join(line + b"\n" for line, record in unsealed if record is not None and is_wanted(record["step"]))
