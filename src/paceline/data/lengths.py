"""Histogram of prompt lengths as text for the terminal."""

import math
from collections.abc import Sequence

BLOCKS = " ▏▎▍▌▋▊▉█"
BAR_WIDTH = 30
MAX_BINS = 8


def length_histogram(lengths: Sequence[int]) -> str:
    """Draw counts per range of tokens as bars, under a line with n, median, 95th percentile and maximum.

    Percentiles are nearest-rank: a length that occurs. Every range that holds a prompt shows at least a sliver.

    >>> print(length_histogram([3, 3, 4]))
    prompt tokens: n 3, median 3, p95 4, max 4
      3 ██████████████████████████████ 2
      4 ███████████████ 1

    Raises:
        ValueError: `lengths` is empty.
    """
    if not lengths:
        raise ValueError("lengths must not be empty")
    ordered = sorted(lengths)
    median, p95 = _percentile(ordered, 0.5), _percentile(ordered, 0.95)
    title = f"prompt tokens: n {len(ordered):,}, median {median:,}, p95 {p95:,}, max {ordered[-1]:,}"
    bins = _bins(ordered)
    labels = [f"{low:,}" if low == high else f"{low:,}-{high:,}" for low, high, _ in bins]
    width = max(len(label) for label in labels)
    most = max(count for _, _, count in bins)
    bars = [
        f"  {label:>{width}} {_bar(count / most)} {count:,}" for label, (_, _, count) in zip(labels, bins, strict=True)
    ]
    return "\n".join([title, *bars])


def _percentile(ordered: Sequence[int], share: float) -> int:
    return ordered[math.ceil(share * len(ordered)) - 1]


def _bins(ordered: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (lowest, highest, count) of equally wide ranges from the smallest length on, both ends included."""
    lowest, highest = ordered[0], ordered[-1]
    width = math.ceil((highest - lowest + 1) / MAX_BINS)
    counts = [0] * ((highest - lowest) // width + 1)
    for length in ordered:
        counts[(length - lowest) // width] += 1
    starts = (lowest + width * index for index in range(len(counts)))
    return [(start, min(start + width - 1, highest), count) for start, count in zip(starts, counts, strict=True)]


def _bar(share: float) -> str:
    """Draw a bar in eighths of a character; it is empty only for 0."""
    eighths = math.ceil(share * BAR_WIDTH * 8)
    whole, rest = divmod(eighths, 8)
    return BLOCKS[-1] * whole + BLOCKS[rest].strip()
