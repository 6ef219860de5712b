"""What this machine trains on, found out without torch, which takes seconds to load."""

from dataclasses import replace
from pathlib import Path

from paceline.cli.devices import ask_driver
from paceline.cli.machine import allowed_memory, free_memory
from paceline.training.plan.hardware import CPU, Device, gpu_of


def this_device(*, gpus: bool = True, cpuinfo: Path = Path("/proc/cpuinfo")) -> Device:
    """The first GPU that the driver shows, else, or without `gpus`, the processor with the memory that is free."""
    if gpus and (cards := ask_driver()):
        return gpu_of(cards[0].name, cards[0].mib)
    free, allowed = free_memory(), allowed_memory()
    memory = min((one for one in (free, allowed) if one is not None), default=None)
    flags = cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else ""
    return replace(CPU, name="this machine's processor", memory=memory, fast_bfloat16=" amx_bf16" in flags)
