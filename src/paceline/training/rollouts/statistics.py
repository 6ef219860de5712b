"""Mean and standard deviation of numbers of which some may be missing."""

import math
from collections.abc import Sequence


def mean_and_std(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Over the values that are there; the sample standard deviation needs two."""
    given = [value for value in values if value is not None]
    if not given:
        return None, None
    mean = math.fsum(given) / len(given)
    if len(given) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in given) / (len(given) - 1))
