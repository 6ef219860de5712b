"""A dataset known again: a hash for each of at most 256 blocks of its tasks, so that a change has a place.

A large dataset has one hash: of its file's bytes, or of a sample of its rows where there is no one file.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.data.tasks import LargeTasks
from paceline.types import Task

BLOCKS = 256
"""So many hashes of 16 hex digits are 5 kB, and tell the row in a set of as many rows, its neighbourhood in others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TasksFingerprint:
    """What a set of tasks looked like."""

    rows: int
    blocks: tuple[str, ...]
    """Hashes of equally many tasks each, the last of what is left: of names, prompts, gold answers and all columns."""
    of: Literal["tasks", "rows"] = "tasks"
    """`rows`: of a large dataset, in one hash."""


def tasks_fingerprint(tasks: Sequence[Task]) -> TasksFingerprint:
    """Of tasks as a run uses them, in their order."""
    if isinstance(tasks, LargeTasks):
        return TasksFingerprint(rows=len(tasks), blocks=(tasks.digest(),), of="rows")
    size = block_size(len(tasks))
    blocks = tuple(_hash(tasks[start : start + size]) for start in range(0, len(tasks), size))
    return TasksFingerprint(rows=len(tasks), blocks=blocks)


def block_size(rows: int) -> int:
    """Tasks in a block."""
    return max(1, -(-rows // BLOCKS))


def tasks_difference(old: TasksFingerprint, tasks: Sequence[Task]) -> str | None:
    """What is otherwise than it was, to follow "it"; None where nothing is."""
    new = tasks_fingerprint(tasks)
    if new.rows != old.rows:
        return f"has {new.rows} rows and had {old.rows}"
    if new.of != old.of:
        return None  # written by a version that read so many rows whole, which can be compared with nothing
    if new.of == "rows":
        return None if new.blocks == old.blocks else "has other content than it had"
    for number, (before, now) in enumerate(zip(old.blocks, new.blocks, strict=True)):
        if before != now:
            size = block_size(new.rows)
            inside = tasks[number * size : (number + 1) * size]
            ends = [inside[0].task_id] if len(inside) == 1 else [inside[0].task_id, inside[-1].task_id]
            return f"has other content than it had, first in row {' to '.join(ends)}"
    return None


def _hash(tasks: Sequence[Task]) -> str:
    digest = hashlib.sha256()
    for task in tasks:
        content = [task.task_id, task.prompt, task.answer, dict(task.columns)]
        digest.update(json.dumps(content, sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()[:16]
