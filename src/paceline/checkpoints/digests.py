"""Digests of what a run reads and writes: files, prompts and datasets. `kernels/checksums.py` has those of weights."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from paceline.data.tasks import LargeTasks
from paceline.types import Task

FileDigest = dict[str, str | int]
"""Size in bytes and SHA-256 of a file."""

BLOCKS = 256
"""Largest number of hashes for a dataset: 5 kB of 16 hex digits each, which locate a changed row to within a block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TasksDigest:
    """Hashes of a dataset's tasks in at most `BLOCKS` blocks, so that a change can be located."""

    rows: int
    blocks: tuple[str, ...]
    """Hashes of names, prompts, gold answers and all columns; the last block may be shorter than the others."""
    of: Literal["tasks", "rows"] = "tasks"
    """`rows`: one hash for a large dataset, of its file's bytes or of a sample of its rows."""
    unrendered: str = ""
    """One hash of the same with messages instead of prompts, independent of the chat template; empty with `rows`."""
    columns: str = ""
    """One hash of names and columns alone, independent of how prompts are made; empty with `rows`."""

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Self:
        """Make the digest whose fields were recorded as JSON."""
        return cls(**{**record, "blocks": tuple(record["blocks"])})


def file_digest(path: Path) -> FileDigest:
    """Return the size and hash of the file as it is on disk."""
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def content_digest(content: bytes) -> dict[str, object]:
    """Return size and hash of a file of rollouts, as a line of the journal records them."""
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def prompts_digest(tasks: Iterable[Task]) -> str:
    """Hash the names of tasks and the prompts of their rows, images included, in their order."""
    named = [
        [task.task_id, *(task.row_prompt_ids or task.prompt_ids), *(image.sha256 for image in task.media)]
        for task in tasks
    ]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()


def image_names(tasks: Iterable[Task]) -> list[str]:
    """Return the hashes of the images in prompts, each once, sorted."""
    return sorted({image.sha256 for task in tasks for image in task.media})


def tasks_digest(tasks: Sequence[Task]) -> TasksDigest:
    """Hash tasks as a run uses them, in their order."""
    if isinstance(tasks, LargeTasks):
        return TasksDigest(rows=len(tasks), blocks=(tasks.digest(),), of="rows")
    size = _block_size(len(tasks))
    blocks, unrendered, columns_hash = list[str](), hashlib.sha256(), hashlib.sha256()
    for start in range(0, len(tasks), size):
        digest = hashlib.sha256()
        for task in tasks[start : start + size]:
            images = [image.sha256 for image in task.media]
            shown = {"images": images} if images else {}
            messages: object = task.prompt if task.messages is None else task.messages
            for target, prompt in ((digest, task.prompt), (unrendered, messages)):
                content = [task.task_id, prompt, task.answer, {**task.columns, **shown}]
                target.update(json.dumps(content, sort_keys=True, default=str).encode() + b"\n")
            row = [task.task_id, {**task.columns, **shown}]
            columns_hash.update(json.dumps(row, sort_keys=True, default=str).encode() + b"\n")
        blocks.append(digest.hexdigest()[:16])
    return TasksDigest(
        rows=len(tasks),
        blocks=tuple(blocks),
        unrendered=unrendered.hexdigest()[:16],
        columns=columns_hash.hexdigest()[:16],
    )


def tasks_difference(
    old: TasksDigest, tasks: Sequence[Task], *, compared: Literal["prompts", "messages", "columns"] = "prompts"
) -> str | None:
    """Describe how tasks differ from an earlier digest, to follow "it"; None if they do not.

    `compared`: with `messages` other prompts of the same messages are no difference, with `columns` neither are other
    messages and gold answers that are read from the same columns.
    """
    new = tasks_digest(tasks)
    if compared == "messages" and new.unrendered == old.unrendered != "":
        return None
    if new.rows != old.rows:
        return f"has {new.rows} rows and had {old.rows}"
    if new.of != old.of:
        return None  # one entry point reads a large dataset as a whole and another by samples: nothing to compare
    if compared == "columns" and new.of == "tasks":
        return None if new.columns == old.columns else "has rows with other columns than they had"
    if new.of == "rows":
        return None if new.blocks == old.blocks else "has other content than it had"
    for number, (before, now) in enumerate(zip(old.blocks, new.blocks, strict=True)):
        if before != now:
            size = _block_size(new.rows)
            inside = tasks[number * size : (number + 1) * size]
            ends = [inside[0].task_id] if len(inside) == 1 else [inside[0].task_id, inside[-1].task_id]
            return f"has other content than it had, first in row {' to '.join(ends)}"
    return None


def _block_size(rows: int) -> int:
    return max(1, -(-rows // BLOCKS))
