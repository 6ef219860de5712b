"""How fast this machine multiplies and reads, measured in about two seconds."""

import time
from collections.abc import Callable
from dataclasses import replace

from paceline.training.plan.hardware import Device, Rates
from paceline.training.plan.shape import ModelShape

SECONDS = 0.5
"""That each of the two is repeated for."""
ROWS = {"cpu": 1024, "cuda": 16_384}
"""Of a product: enough to be limited by operations."""
READ = {"cpu": 1 << 28, "cuda": 1 << 31}
"""Bytes, more than any cache holds."""


def calibrated(device: Device, shape: ModelShape, number_bytes: int, threads: int) -> Device:
    """The device with the rates of a product of this model's width, and of adding up what does not fit into a cache."""
    import torch

    if device.kind == "cpu" and threads:
        torch.set_num_threads(threads)
    dtype = torch.bfloat16 if number_bytes < 4 else torch.float32
    inner = max(shape.width, shape.layer // (4 * shape.width))
    rows = torch.randn(ROWS[device.kind], shape.width, device=device.kind).to(dtype)
    weight = torch.randn(inner, shape.width, device=device.kind).to(dtype)
    read = torch.ones(READ[device.kind] // 4, device=device.kind)

    def wait() -> None:
        if device.kind == "cuda":
            torch.cuda.synchronize()

    products = 2 * rows.numel() * inner / _seconds(lambda: rows @ weight.T, wait)
    return replace(device, rates=Rates(products=products, reading=read.nbytes / _seconds(read.sum, wait)))


def _seconds(work: Callable[[], object], wait: Callable[[], None]) -> float:
    """Of one repetition, the first left out."""
    work()
    wait()
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < SECONDS:
        for _ in range(4):
            work()
        wait()
        count += 4
    return (time.perf_counter() - begun) / count
