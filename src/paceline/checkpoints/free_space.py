"""Room for checkpoints: on the disk for files, in main memory for the copies that they are written from."""

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
"""Of a machine's free main memory, what copies may take: the run itself goes on to allocate meanwhile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a rank needs for a checkpoint."""

    nbytes: int
    """That it writes, and would copy."""
    free: int | None
    """Bytes of main memory that are left where it runs; None: the system does not say."""
    kept: int
    """Bytes that it has for copies already."""
    host: str


def ask_all(ranks: Ranks, *, nbytes: int, staging: StagingBuffers | None) -> list[Asked]:
    """What each rank needs, by rank; all make this call.

    Raises:
        RankLost: another rank is gone, or silent for too long.
    """
    free, kept = (None, 0) if staging is None else (staging.free(), staging.nbytes)
    said = ranks.all_gather_text(
        json.dumps({"nbytes": nbytes, "free": free, "kept": kept, "host": socket.gethostname()})
    )
    return [Asked(**json.loads(one)) for one in said]


def copies_fit(asked: Sequence[Asked]) -> bool:
    """Whether on every machine the copies of all its ranks fit into a share of what is free there."""
    for host in {one.host for one in asked}:
        there = [one for one in asked if one.host == host]
        known = [one.free for one in there if one.free is not None]
        if known and sum(one.nbytes for one in there) > COPY_SHARE * (min(known) + sum(one.kept for one in there)):
            return False
    return True


def refuse_full(place: Path, *, needed: int) -> None:
    """Before a checkpoint is begun in a directory that is there.

    Raises:
        StorageError: the disk has not so many bytes left.
    """
    free = free_bytes(place)
    if free is not None and needed > free:
        raise StorageError(storage_sentence(place, "there is not enough room on the disk", needed=needed, free=free))


def storage_sentence(place: Path, why: str, *, needed: int, free: int | None) -> str:
    """Why a checkpoint cannot be written, in figures."""
    left = "" if free is None else f", {free:,} are free"
    return (
        f"{place} cannot be written: {why}; a checkpoint needs {needed:,} bytes{left}; make room there, then resume: "
        "the last checkpoint is whole"
    )


def free_bytes(place: Path) -> int | None:
    """What a user may still write where a directory is, or is to be made; None: the file system counts no bytes."""
    while not place.exists() and place != place.parent:
        place = place.parent
    usage = shutil.disk_usage(place)
    return usage.free if usage.total else None


def bytes_below(place: Path) -> int:
    """What the files in a directory take, if it is there; links count nothing."""
    files = (path for path in place.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files)


def room_of_run(*, checkpoint: int, final: int, saves: int, keep: int) -> int:
    """Bytes that a run's models take at most: `keep` checkpoints and the one that is written before one goes, fewer
    where there are only so many `saves`, one at least for an interrupt; and the final model."""
    return checkpoint * max(1, min(keep + 1, saves)) + final


def refuse_small_disk(output_dir: Path, *, needed: int) -> None:
    """Before a run is begun, or gone on with: what it has written already is room for what takes its place.

    Raises:
        ConfigError: the disk has too little left.
    """
    there = sum(bytes_below(output_dir / name) for name in ("checkpoints", "final"))
    free = free_bytes(output_dir)
    if free is not None and needed > free + there:
        raise ConfigError(
            f"--output-dir {output_dir} must have room for its checkpoints and the final model, {needed:,} bytes, and "
            f"{free + there:,} are free there; make room, name another disk, or lower --save-total-limit"
        )
