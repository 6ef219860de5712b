"""Space for checkpoints: on disk for files, in main memory for the copies that are written in the background."""

import json
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import ConfigError, StorageError
from paceline.models.parallel.ranks import Ranks
from paceline.models.parallel.staging import StagingBuffers

COPY_SHARE = 0.5
"""Largest share of a machine's free main memory for copies: the run itself continues to allocate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpaceNeeded:
    """A rank's needs for a checkpoint."""

    nbytes: int
    """Bytes this rank writes, and stages if they are copied."""
    free: int | None
    """Bytes of free main memory on its machine; None if the system does not tell."""
    kept: int
    """Bytes of its staging buffers."""
    host: str


def ask_all(ranks: Ranks, *, nbytes: int, staging: StagingBuffers | None) -> list[SpaceNeeded]:
    """Gather what each rank needs, by rank; all ranks make this call. RankLost: one is gone or silent."""
    free, kept = (None, 0) if staging is None else (staging.free(), staging.nbytes)
    texts = ranks.all_gather_text(
        json.dumps({"nbytes": nbytes, "free": free, "kept": kept, "host": socket.gethostname()})
    )
    return [SpaceNeeded(**json.loads(text)) for text in texts]


def copies_fit(needs: Sequence[SpaceNeeded]) -> bool:
    """Return True if on every machine the copies of all its ranks fit into a share of its free memory."""
    for host in {need.host for need in needs}:
        on_host = [need for need in needs if need.host == host]
        known = [need.free for need in on_host if need.free is not None]
        if known and sum(need.nbytes for need in on_host) > COPY_SHARE * (
            min(known) + sum(need.kept for need in on_host)
        ):
            return False
    return True


def refuse_full(directory: Path, *, needed: int) -> None:
    """Refuse with a StorageError to begin a checkpoint in a directory whose disk has fewer bytes left."""
    free = free_bytes(directory)
    if free is not None and needed > free:
        raise StorageError(
            storage_sentence(directory, "there is not enough room on the disk", needed=needed, free=free)
        )


def storage_sentence(path: Path, why: str, *, needed: int, free: int | None) -> str:
    """Explain with figures why a checkpoint cannot be written."""
    left = "" if free is None else f", {free:,} are free"
    return (
        f"{path} cannot be written: {why}; a checkpoint needs {needed:,} bytes{left}; make room there, then resume: "
        "the last checkpoint is whole"
    )


def free_bytes(path: Path) -> int | None:
    """Return the bytes a user may still write at a place; None if the file system does not count them."""
    while not path.exists() and path != path.parent:
        path = path.parent
    usage = shutil.disk_usage(path)
    return usage.free if usage.total else None


def room_of_run(*, checkpoint: int, final: int, saves: int, keep: int) -> int:
    """Return the most bytes that a run's models take: `keep` checkpoints, one more during a write, and the final model.
    A run with fewer `saves` needs less, but at least one for an interrupt."""
    return checkpoint * max(1, min(keep + 1, saves)) + final


def refuse_small_disk(output_dir: Path, *, needed: int) -> None:
    """Refuse with a ConfigError a disk with too little left for a run; what it has written already counts as free."""
    files = (path for name in ("checkpoints", "final") for path in (output_dir / name).rglob("*"))
    written = sum(path.stat().st_size for path in files if path.is_file() and not path.is_symlink())
    free = free_bytes(output_dir)
    if free is not None and needed > free + written:
        raise ConfigError(
            f"--output-dir {output_dir} must have room for its checkpoints and the final model, {needed:,} bytes, and "
            f"{free + written:,} are free there; make room, name another disk, or lower --save-total-limit"
        )
