"""Kinds of devices that a run is planned for, and their memory as the driver shows it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

BFLOAT16_UNITS = ("amx_bf16", "avx512_bf16")
"""Flags of processors that multiply bfloat16 in hardware, as in `kernels`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A device that trains."""

    name: str
    kind: Literal["cpu", "cuda"]
    memory: int | None = None
    """Bytes that a run may take; None: not known."""
    fast_bfloat16: bool = False
    """True if the precision `auto` may be bfloat16; on CUDA it always is."""
    float8: bool = True
    """False if it is known that it does not multiply in eight bits."""


CPU = Device(name="a CPU", kind="cpu")


def _gpu(name: str, mib: int, *, float8: bool = True) -> Device:
    return Device(name=name, kind="cuda", memory=mib << 20, fast_bfloat16=True, float8=float8)


GPUS: Mapping[str, Device] = {
    "l4": _gpu("NVIDIA L4", 23_034),
    "rtx-4090": _gpu("NVIDIA GeForce RTX 4090", 24_564),
    "rtx-5090": _gpu("NVIDIA GeForce RTX 5090", 32_607),
    "a100-40gb": _gpu("NVIDIA A100 40GB", 40_960, float8=False),
    "l40s": _gpu("NVIDIA L40S", 46_068),
    "a100-80gb": _gpu("NVIDIA A100 80GB", 81_920, float8=False),
    "h100": _gpu("NVIDIA H100 80GB HBM3", 81_559),
    "h200": _gpu("NVIDIA H200", 143_771),
    "b200": _gpu("NVIDIA B200", 183_359),
}
"""Devices by the name that `--gpu` takes."""


def gpu_of(driver_name: str, mib: int) -> Device:
    """Return the device with this name in the driver's list.

    >>> gpu_of("NVIDIA A100-SXM4-80GB", 81920).float8, gpu_of("NVIDIA GeForce GTX 1080", 8192).float8
    (False, True)
    """
    words = _words(driver_name.lower())
    return _gpu(driver_name, mib, float8=all(gpu.float8 for name, gpu in GPUS.items() if _words(name) <= words))


def _words(name: str) -> set[str]:
    return set(name.replace("-", " ").split())
