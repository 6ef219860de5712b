"""The machine for `paceline doctor`, without any library: cores, memory, disks, limits of a container."""

import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

LEAST_DISK = 1 << 30
LEAST_MEMORY = 1 << 30
WRITTEN = 16 << 20
"""Bytes of the disk test: a second on a slow disk."""
GROUPS = Path("/sys/fs/cgroup")
"""Path of the container's control group (version 2 of Linux's), as seen from inside."""

State = Literal["fine", "missing", "broken"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One fact about this machine."""

    name: str
    state: State
    """`broken`: training cannot run; `missing`: something optional."""
    says: str
    remedy: str = ""
    """Remedy in words."""
    command: str = ""
    """Command to type, if that is the whole remedy."""


def machine() -> list[Check]:
    """Check cores, memory, and the disks of the working directory and of temporary files."""
    here, temporary = Path.cwd(), Path(tempfile.gettempdir())
    disks = [disk(here, "disk", "set --output-dir to another disk")]
    if here.stat().st_dev != temporary.stat().st_dev:
        disks.append(disk(temporary, "temporary files", "set TMPDIR to another disk"))
    return [cores(_own_cores(), allowed_cores()), *memory(free_memory(), allowed_memory()), *disks]


def _own_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def cores(count: int, allowed: float | None) -> Check:
    """Check `count` cores that this process may use; a container may limit their time to fewer."""
    if allowed is None or allowed >= count:
        return Check(name="cores", state="fine", says=str(count))
    says = f"{count}, of which the container allows the time of {allowed:g}"
    remedy = f"threads beyond that wait for each other: set --threads {max(1, int(allowed))}"
    return Check(name="cores", state="missing", says=says, remedy=remedy)


def memory(free: int | None, limit: int | None) -> list[Check]:
    """Check free memory and the container's limit, in bytes; None: unknown, or no limit."""
    if free is None:
        return []
    says = f"{_gib(free)} free" + (f", {_gib(limit)} allowed by the container" if limit is not None else "")
    if min(free, free if limit is None else limit) >= LEAST_MEMORY:
        return [Check(name="memory", state="fine", says=says)]
    remedy = "models may not fit: close other programs, or give the container more"
    return [Check(name="memory", state="missing", says=says, remedy=remedy)]


def disk(place: Path, name: str, remedy: str, *, least: int = LEAST_DISK) -> Check:
    """Check the free space of a directory, and its speed for synced writes."""
    free = shutil.disk_usage(place).free
    try:
        speed = writing_speed(place, min(WRITTEN, free // 2))
    except OSError as error:
        says = f"nothing can be written in {place} ({error.strerror})"
        return Check(name=name, state="missing", says=says, remedy=remedy)
    says = f"{_gib(free)} free in {place}, written at {speed / 1e6:.0f} MB/s"
    if free >= least:
        return Check(name=name, state="fine", says=says)
    return Check(name=name, state="missing", says=says, remedy=f"checkpoints or models may not fit: {remedy}")


def writing_speed(place: Path, nbytes: int) -> float:
    """Bytes per second to a synced file, which is removed afterwards.

    Raises:
        OSError: nothing can be written there.
    """
    block = os.urandom(1 << 20)  # a file system that compresses would make little of zeros
    with tempfile.NamedTemporaryFile(dir=place, prefix=".paceline-doctor-") as file:
        started = time.perf_counter()
        for _ in range(max(1, nbytes // len(block))):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return file.tell() / (time.perf_counter() - started)


def free_memory(place: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes available to a new process; None where the system does not report it."""
    if not place.is_file():
        return None
    fields = dict(line.split(":", 1) for line in place.read_text(encoding="ascii").splitlines() if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else None


def allowed_memory(groups: Path = GROUPS) -> int | None:
    """Memory limit of the container in bytes; None for no limit."""
    limit = _read(groups / "memory.max")
    return None if limit in (None, "max") else int(str(limit))


def allowed_cores(groups: Path = GROUPS) -> float | None:
    """Core limit of the container; None for no limit.

    `cpu.max` holds the microseconds of each period that it may use, and the period.
    """
    limit = _read(groups / "cpu.max")
    if limit is None:
        return None
    quota, _, period = limit.partition(" ")
    return None if quota == "max" else int(quota) / int(period)


def _read(file: Path) -> str | None:
    return file.read_text(encoding="ascii").strip() if file.is_file() else None


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB"
