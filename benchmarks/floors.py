"""From work to the seconds that it must take on a machine: max(operations / matrix rate, bytes / bandwidth).

Pure functions. `Work` of a step's phases comes from step_work.py, rates from a result of machine.py.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What must be done at once."""

    operations: float = 0.0
    bytes: float = 0.0
    touched: float = 0.0
    """Bytes of the memory that `bytes` come from: decides which of the machine's caches may hold it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """What a machine can do, for one precision of the products."""

    matrix: float
    """Operations per second."""
    bandwidth: tuple[tuple[float, float], ...]
    """(bytes touched, bytes per second), from small to large."""

    def bandwidth_at(self, touched: float) -> float:
        """Between two measured sizes on a straight line over the logarithm of the size; beyond them, the nearest."""
        sizes = [size for size, _ in self.bandwidth]
        after = bisect_left(sizes, touched)
        if after in (0, len(sizes)):
            return self.bandwidth[min(after, len(sizes) - 1)][1]
        (small, fast), (large, slow) = self.bandwidth[after - 1], self.bandwidth[after]
        return fast + (slow - fast) * math.log(touched / small) / math.log(large / small)


DATA_SHEETS: Mapping[str, Rates] = {
    name: Rates(matrix=teraflops * 1e12, bandwidth=((1.0, terabytes * 1e12),))
    for name, teraflops, terabytes in (
        ("l4", 121, 0.3),
        ("rtx 4090", 165, 1.008),
        ("rtx 5090", 210, 1.792),
        ("a100 40gb", 312, 1.555),
        ("l40s", 362, 0.864),
        ("a100 80gb", 312, 2.039),
        ("h100", 989, 3.35),
        ("h200", 989, 4.8),
        ("b200", 2250, 8.0),
    )
}
"""Rates of GPUs by words of the name that their driver gives: dense products in bfloat16, and memory."""


def data_sheet(device: str) -> Rates | None:
    """Return the maker's rates of a device by its driver's name; None where they are not known, as of a slower card for
    PCIe.

    >>> data_sheet("NVIDIA A100-SXM4-80GB").bandwidth, data_sheet("NVIDIA H100 PCIe")
    (((1.0, 2039000000000.0),), None)
    """
    words = set(device.lower().replace("-", " ").split())
    known = (rates for name, rates in DATA_SHEETS.items() if set(name.split()) <= words)
    return None if "pcie" in words else next(known, None)


def rates_of(machine: Mapping[str, Any], dtype: str) -> Rates:
    """From a result of machine.py: the best rate of any product, and for each size the best of reading and copying.

    Args:
        machine: the result.
        dtype: `float32` or `bfloat16`.
    """
    best: dict[float, float] = {}
    for one in machine["bandwidth"]:
        best[one["bytes"]] = max(one["rate"], best.get(one["bytes"], 0.0))
    matrix = max(one["rate"] for one in machine["matrix"] if one["dtype"] == dtype)
    return Rates(matrix=matrix, bandwidth=tuple(sorted(best.items())))


def limit(work: Work, rates: Rates) -> Literal["operations", "bytes"]:
    """Which of the two takes longer."""
    by_operations = work.operations / rates.matrix
    return "operations" if by_operations >= work.bytes / rates.bandwidth_at(work.touched) else "bytes"


def floor(work: Work | Iterable[Work], rates: Rates) -> float:
    """Seconds; of a sequence of works, each of which waits for the one before, the sum."""
    if isinstance(work, Work):
        return max(work.operations / rates.matrix, work.bytes / rates.bandwidth_at(work.touched))
    return sum(floor(one, rates) for one in work)
