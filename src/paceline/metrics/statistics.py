"""Mean, sample variance and standard deviation, exactly rounded sums throughout."""

import math
from collections.abc import Sequence


def mean_of(values: Sequence[float]) -> float:
    """Return the mean of at least one number."""
    return math.fsum(values) / len(values)


def mean_and_variance(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and sample variance of at least one number; one number alone has variance 0.0."""
    mean = mean_of(values)
    return mean, math.fsum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1)


def mean_and_std(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return mean and sample standard deviation of the values that are not None.

    The mean is None without any value, the standard deviation with fewer than two.
    """
    given = [value for value in values if value is not None]
    if not given:
        return None, None
    mean, variance = mean_and_variance(given)
    return mean, math.sqrt(variance) if len(given) > 1 else None
