"""CUDA devices for `paceline doctor`: what torch computes on, and what the driver reports."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.cli.machine import Check

QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
PATIENCE = 20.0
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
        said = subprocess.run(QUERY, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return read_cards(said.stdout) if said.returncode == 0 else []


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
    found = []
    for index in range(torch.cuda.device_count()):
        properties, (free, total) = torch.cuda.get_device_properties(index), torch.cuda.mem_get_info(index)
        capability = (properties.major, properties.minor)
        found.append(DriverDevice(name=properties.name, free=free, total=total, capability=capability))
    says = f"{torch.__version__}, computes on CUDA {torch.version.cuda}"
    return [Check(name="torch", state="fine", says=says), *on_devices(found, cards)]


def on_the_cpu(torch: str, cuda: str | None, threads: int, cards: Sequence[Card]) -> Check:
    """Check of a machine without CUDA devices. `cuda`: the version that torch was built for; None for a CPU build."""
    says = f"{torch}, computes on the CPU with {threads} {'thread' if threads == 1 else 'threads'}"
    if not cards:
        built = f" (built for CUDA {cuda}, and finds no device)" if cuda is not None else ""
        return Check(name="torch", state="fine", says=says + built)
    there = f"{says}, though there is {cards[0].name} with driver {cards[0].driver}"
    if cuda is not None:
        remedy = f"this torch wants a driver for CUDA {cuda}: install a newer one, or a torch for an older CUDA"
        return Check(name="torch", state="missing", says=there, remedy=remedy)
    remedy = "install a CUDA build of torch; torch's own installation page has the command"
    return Check(name="torch", state="missing", says=f"{there}: it is a CPU's build", remedy=remedy)


def on_devices(devices: Sequence[DriverDevice], cards: Sequence[Card]) -> list[Check]:
    """One line per device; the first also has the driver's version, which all share."""
    lines = []
    for number, one in enumerate(devices):
        driver = f", driver {cards[0].driver}" if number == 0 and cards else ""
        free, total, (major, minor) = one.free / 2**30, one.total / 2**30, one.capability
        says = f"{one.name}, {free:.1f} of {total:.1f} GiB free, capability {major}.{minor}{driver}"
        slow = "" if one.capability >= BFLOAT16 else "it does not multiply bfloat16: --dtype float32 is as fast"
        lines.append(Check(name=f"GPU {number}", state="missing" if slow else "fine", says=says, remedy=slow))
    return lines
