"""What `paceline doctor` finds out of a machine without any library: cores, memory, disks, what a container allows."""

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
"""Bytes that a disk is tried with: a second where it is slow."""
GROUPS = Path("/sys/fs/cgroup")
"""Of the container, as seen from inside it (version 2 of Linux's control groups)."""

State = Literal["fine", "missing", "broken"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One fact about this machine."""

    name: str
    state: State
    """`broken`: training cannot run so; `missing`: something that not everybody needs."""
    says: str
    remedy: str = ""
    """What to do about it, in words."""
    command: str = ""
    """What to type for it, where that is all there is to do."""


def machine() -> list[Check]:
    """Cores, memory, and the disk of the working directory and of temporary files, where that is another one."""
    here, temporary = Path.cwd(), Path(tempfile.gettempdir())
    disks = [disk(here, "disk", "set --output-dir to another disk")]
    if here.stat().st_dev != temporary.stat().st_dev:
        disks.append(disk(temporary, "temporary files", "set TMPDIR to another disk"))
    return [cores(_own_cores(), allowed_cores()), *memory(free_memory(), allowed_memory()), *disks]


def _own_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def cores(count: int, allowed: float | None) -> Check:
    """`count` that this process may run on, of which a container may allow the time of fewer."""
    if allowed is None or allowed >= count:
        return Check(name="cores", state="fine", says=str(count))
    says = f"{count}, of which the container allows the time of {allowed:g}"
    remedy = f"threads beyond that wait for each other: set --threads {max(1, int(allowed))}"
    return Check(name="cores", state="missing", says=says, remedy=remedy)


def memory(free: int | None, limit: int | None) -> list[Check]:
    """Bytes that are free, and those that a container allows in all; None: not known, or no limit."""
    if free is None:
        return []
    says = f"{_gib(free)} free" + (f", {_gib(limit)} allowed by the container" if limit is not None else "")
    if min(free, free if limit is None else limit) >= LEAST_MEMORY:
        return [Check(name="memory", state="fine", says=says)]
    remedy = "models may not fit: close other programs, or give the container more"
    return [Check(name="memory", state="missing", says=says, remedy=remedy)]


def disk(place: Path, name: str, remedy: str, *, least: int = LEAST_DISK) -> Check:
    """Room in a directory, and how fast it takes bytes that are to survive a crash."""
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
    """Bytes per second to a file that is synced, and gone afterwards.

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
    """Bytes that a new process can have; None where the system does not say."""
    if not place.is_file():
        return None
    fields = dict(line.split(":", 1) for line in place.read_text(encoding="ascii").splitlines() if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else None


def allowed_memory(groups: Path = GROUPS) -> int | None:
    """Bytes that the container may use in all; None: no limit."""
    limit = _read(groups / "memory.max")
    return None if limit in (None, "max") else int(str(limit))


def allowed_cores(groups: Path = GROUPS) -> float | None:
    """Cores whose time the container may use; None: no limit.

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
