"""The machine for `paceline doctor`, without any library: cores, memory, disks, limits of a container."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paceline.reports.format import gibibytes

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
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return [cores(count, allowed_cores()), *memory(free_memory(), allowed_memory()), *disks]


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
    says = f"{gibibytes(free, 1)} free"
    if limit is not None:
        says += f", {gibibytes(limit, 1)} allowed by the container"
    if min(free, free if limit is None else limit) >= LEAST_MEMORY:
        return [Check(name="memory", state="fine", says=says)]
    remedy = "models may not fit: close other programs, or give the container more"
    return [Check(name="memory", state="missing", says=says, remedy=remedy)]


def disk(directory: Path, name: str, remedy: str, *, least: int = LEAST_DISK) -> Check:
    """Check the free space of a directory, and its speed for synced writes."""
    free = shutil.disk_usage(directory).free
    try:
        speed = writing_speed(directory, min(WRITTEN, free // 2))
    except OSError as error:
        says = f"nothing can be written in {directory} ({error.strerror})"
        return Check(name=name, state="missing", says=says, remedy=remedy)
    says = f"{gibibytes(free, 1)} free in {directory}, written at {speed / 1e6:.0f} MB/s"
    if free >= least:
        return Check(name=name, state="fine", says=says)
    return Check(name=name, state="missing", says=says, remedy=f"checkpoints or models may not fit: {remedy}")


def writing_speed(directory: Path, nbytes: int) -> float:
    """Bytes per second to a synced file, which is removed afterwards.

    Raises:
        OSError: nothing can be written there.
    """
    block = os.urandom(1 << 20)  # a file system that compresses would make little of zeros
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".paceline-doctor-") as file:
        started = time.perf_counter()
        for _ in range(max(1, nbytes // len(block))):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return file.tell() / (time.perf_counter() - started)


def free_memory(file: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes available to a new process; None where the system does not report it."""
    if not file.is_file():
        return None
    fields = dict(line.split(":", 1) for line in file.read_text(encoding="ascii").splitlines() if ":" in line)
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


QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
DRIVER_TIMEOUT = 20.0
"""Timeout of the driver's program in seconds; it may have to load the driver."""
BFLOAT16 = (8, 0)
"""Lowest compute capability with bfloat16 products."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A CUDA device as the driver reports it."""

    name: str
    mib: int
    driver: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverDevice:
    """A CUDA device as torch reports it."""

    name: str
    free: int
    total: int
    """Bytes."""
    capability: tuple[int, int]


def ask_driver() -> list[Card]:
    """Devices that the driver reports; none without a driver."""
    if shutil.which(QUERY[0]) is None:
        return []
    try:
        completed = subprocess.run(QUERY, capture_output=True, text=True, timeout=DRIVER_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return read_cards(completed.stdout) if completed.returncode == 0 else []


def read_cards(text: str) -> list[Card]:
    """Parse the output of the driver's program.

    >>> read_cards("NVIDIA H100 80GB HBM3, 81559, 580.82.07")
    [Card(name='NVIDIA H100 80GB HBM3', mib=81559, driver='580.82.07')]
    """
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [Card(name=row[0], mib=int(row[1]), driver=row[2]) for row in rows if len(row) == 3 and row[1].isdecimal()]


def torch_and_devices() -> list[Check]:
    """Check torch and its devices."""
    try:
        import torch
    except (ImportError, OSError) as error:
        says = f"cannot be imported ({' '.join(str(error).split())[:120]})"
        remedy = "run: pip install --upgrade --force-reinstall torch"
        return [Check(name="torch", state="broken", says=says, remedy=remedy)]
    cards = ask_driver()
    if not torch.cuda.is_available():
        return [on_the_cpu(torch.__version__, torch.version.cuda, torch.get_num_threads(), cards)]
    devices = []
    for index in range(torch.cuda.device_count()):
        properties, (free, total) = torch.cuda.get_device_properties(index), torch.cuda.mem_get_info(index)
        capability = (properties.major, properties.minor)
        devices.append(DriverDevice(name=properties.name, free=free, total=total, capability=capability))
    says = f"{torch.__version__}, computes on CUDA {torch.version.cuda}"
    return [Check(name="torch", state="fine", says=says), *on_devices(devices, cards)]


def on_the_cpu(torch: str, cuda: str | None, threads: int, cards: Sequence[Card]) -> Check:
    """Check of a machine without CUDA devices. `cuda`: the version that torch was built for; None for a CPU build."""
    says = f"{torch}, computes on the CPU with {threads} {'thread' if threads == 1 else 'threads'}"
    if not cards:
        built = f" (built for CUDA {cuda}, and finds no device)" if cuda is not None else ""
        return Check(name="torch", state="fine", says=says + built)
    idle_card = f"{says}, though there is {cards[0].name} with driver {cards[0].driver}"
    if cuda is not None:
        remedy = f"this torch wants a driver for CUDA {cuda}: install a newer one, or a torch for an older CUDA"
        return Check(name="torch", state="missing", says=idle_card, remedy=remedy)
    remedy = "install a CUDA build of torch; torch's own installation page has the command"
    return Check(name="torch", state="missing", says=f"{idle_card}: it is a CPU's build", remedy=remedy)


def on_devices(devices: Sequence[DriverDevice], cards: Sequence[Card]) -> list[Check]:
    """One line per device; the first also has the driver's version, which all share."""
    lines = []
    for number, device in enumerate(devices):
        driver = f", driver {cards[0].driver}" if number == 0 and cards else ""
        free, total, (major, minor) = device.free / 2**30, device.total / 2**30, device.capability
        says = f"{device.name}, {free:.1f} of {total:.1f} GiB free, capability {major}.{minor}{driver}"
        slow = "" if device.capability >= BFLOAT16 else "it does not multiply bfloat16: --dtype float32 is as fast"
        lines.append(Check(name=f"GPU {number}", state="missing" if slow else "fine", says=says, remedy=slow))
    return lines
