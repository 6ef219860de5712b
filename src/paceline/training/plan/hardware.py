"""What a step is planned for: a kind of device, its memory, and how fast it multiplies and reads.

Figures of GPUs are their makers' (data sheets): dense products in bfloat16, memory as the driver shows it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

BFLOAT16_UNITS = ("amx_bf16", "avx512_bf16")
"""Flags of processors that multiply bfloat16 in hardware, as `kernels` has them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """How fast a device is at best, or was found to be."""

    products: float
    """Floating-point operations per second, in the precision of the computation."""
    reading: float
    """Bytes of memory per second."""
    decoding: float | None = None
    """Operations per second with as few rows as are decoded at a time, where it was measured; None: as `products`."""
    training: float | None = None
    """Operations per second of products forward and back, weights cast, where it was measured; None: as `products`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One of the devices that train."""

    name: str
    kind: Literal["cpu", "cuda"]
    memory: int | None = None
    """Bytes that a run may take; None: not known."""
    rates: Rates | None = None
    """None: not known."""
    fast_bfloat16: bool = False
    """True if the precision `auto` may be bfloat16; on CUDA it always is."""
    float8: bool = True
    """False if it is known that it does not multiply in eight bits."""


CPU = Device(name="a CPU", kind="cpu")


def _gpu(name: str, mib: int, teraflops: float, terabytes: float, *, float8: bool = True) -> Device:
    rates = Rates(products=teraflops * 1e12, reading=terabytes * 1e12)
    return Device(name=name, kind="cuda", memory=mib << 20, rates=rates, fast_bfloat16=True, float8=float8)


GPUS: Mapping[str, Device] = {
    "l4": _gpu("NVIDIA L4", 23_034, 121, 0.3),
    "rtx-4090": _gpu("NVIDIA GeForce RTX 4090", 24_564, 165, 1.008),
    "rtx-5090": _gpu("NVIDIA GeForce RTX 5090", 32_607, 210, 1.792),
    "a100-40gb": _gpu("NVIDIA A100 40GB", 40_960, 312, 1.555, float8=False),
    "l40s": _gpu("NVIDIA L40S", 46_068, 362, 0.864),
    "a100-80gb": _gpu("NVIDIA A100 80GB", 81_920, 312, 2.039, float8=False),
    "h100": _gpu("NVIDIA H100 80GB HBM3", 81_559, 989, 3.35),
    "h200": _gpu("NVIDIA H200", 143_771, 989, 4.8),
    "b200": _gpu("NVIDIA B200", 183_359, 2250, 8.0),
}
"""By the name that --gpu takes."""


def gpu_of(driver_name: str, mib: int) -> Device:
    """The device that the driver calls so; without rates where they are not known, as of the slower cards for PCIe.

    >>> gpu_of("NVIDIA A100-SXM4-80GB", 81920).rates.reading / 1e12
    2.039
    >>> gpu_of("NVIDIA GeForce GTX 1080", 8192).rates is None
    True
    """
    known = [gpu for name, gpu in GPUS.items() if _words(name) <= _words(driver_name.lower())]
    rates = known[0].rates if known and "pcie" not in driver_name.lower() else None
    float8 = not known or known[0].float8
    return Device(name=driver_name, kind="cuda", memory=mib << 20, rates=rates, fast_bfloat16=True, float8=float8)


def _words(name: str) -> set[str]:
    return set(name.replace("-", " ").split())
