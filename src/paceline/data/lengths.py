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
    median, p95 = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.95))
    # Equally wide ranges from the smallest length on, both ends included.
    lowest, highest = ordered[0], ordered[-1]
    width = math.ceil((highest - lowest + 1) / MAX_BINS)
    counts = [0] * ((highest - lowest) // width + 1)
    for length in ordered:
        counts[(length - lowest) // width] += 1
    bounds = [(low, min(low + width - 1, highest)) for low in range(lowest, highest + 1, width)]
    labels = [f"{low:,}" if low == high else f"{low:,}-{high:,}" for low, high in bounds]
    lines = [f"prompt tokens: n {len(ordered):,}, median {median:,}, p95 {p95:,}, max {ordered[-1]:,}"]
    for label, count in zip(labels, counts, strict=True):
        # In eighths of a character: a bar is empty only for 0.
        whole, rest = divmod(math.ceil(count / max(counts) * BAR_WIDTH * 8), 8)
        bar = BLOCKS[-1] * whole + BLOCKS[rest].strip()
        lines.append(f"  {label:>{max(map(len, labels))}} {bar} {count:,}")
    return "\n".join(lines)
