"""Mean, variance and 95 % confidence intervals with exactly rounded sums; avg@k, pass@k and maj@k.

With several completions of a task, `accuracy` is avg@k: the mean over tasks of the share that is right.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


def mean_of(values: Sequence[float]) -> float:
    """Return the mean of at least one number."""
    return math.fsum(values) / len(values)


def mean_and_variance(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and sample variance of at least one number; one number alone has variance 0.0."""
    mean = mean_of(values)
    return mean, math.fsum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1)


def mean_and_std(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return mean and sample standard deviation of the values that are not None.

    The mean is None if there is no value, the standard deviation with fewer than two.
    """
    present = [value for value in values if value is not None]
    if not present:
        return None, None
    mean, variance = mean_and_variance(present)
    return mean, math.sqrt(variance) if len(present) > 1 else None


Vote = tuple[str | None, bool]
"""Answer that a completion states, or None, and True if the completion was right."""


def avg_at_k(correct: int, n: int) -> float:
    """Return the share of right completions among the `n` of one task."""
    return correct / n


def pass_at_k(correct: int, n: int, k: int) -> float:
    """Return the probability that at least one of `k` samples is right, given `correct` right ones among `n`.

    1 - C(n - correct, k) / C(n, k). Source: M. Chen et al., arXiv:2107.03374, Eq. 1.
    """
    return 1 - math.comb(n - correct, k) / math.comb(n, k)


def maj_at_k(votes: Sequence[Vote]) -> float:
    """Return the probability that the most frequent answer is right.

    Answers are equal if their texts are, apart from spaces; completions without an answer do not vote. Ties are broken
    at random, so the result averages over the tied answers. An answer whose completions were graded differently counts
    by the share of them that was right. 0.0 if no completion states an answer.
    Source: X. Wang et al., arXiv:2203.11171.

    >>> maj_at_k([("4", True), ("5", False), ("4", True)]), maj_at_k([("4", True), ("5", False)])
    (1.0, 0.5)
    """
    by_answer: dict[str, list[bool]] = {}
    for answer, right in votes:
        if answer is not None:
            by_answer.setdefault("".join(answer.split()), []).append(right)
    if not by_answer:
        return 0.0
    most = max(map(len, by_answer.values()))
    winners = [sum(rights) / len(rights) for rights in by_answer.values() if len(rights) == most]
    return math.fsum(winners) / len(winners)


Z = 1.959963984540054
"""97.5 % point of the standard normal distribution."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """An estimate with its 95 % confidence interval."""

    value: float
    low: float
    high: float


def wilson(correct: int, n: int) -> Interval:
    """Return the share `correct / n` with Wilson's score interval, which stays honest near 0 and 1.

    Source: E. B. Wilson, Journal of the American Statistical Association 22 (1927), 209-212.

    Raises:
        ValueError: `n` < 1, or `correct` outside 0..n.

    >>> i = wilson(96, 100); round(i.low, 3), round(i.high, 3)
    (0.902, 0.984)
    """
    if n < 1 or not 0 <= correct <= n:
        raise ValueError(f"correct must lie in 0..n with n at least 1, got {correct} of {n}")
    share, square = correct / n, Z * Z / n
    centre = (share + square / 2) / (1 + square)
    half = Z * math.sqrt(share * (1 - share) / n + square / (4 * n)) / (1 + square)
    # where every answer is right or wrong the bound is exactly 1 or 0; rounding must not move it past
    return Interval(
        value=share,
        low=0.0 if correct == 0 else centre - half,
        high=1.0 if correct == n else centre + half,
    )


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean of independent values with a normal interval.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("values must hold at least one number")
    mean, variance = mean_and_variance(values)
    half = Z * math.sqrt(variance / len(values))
    return Interval(value=mean, low=mean - half, high=mean + half)


def paired_difference(before: Sequence[bool], after: Sequence[bool]) -> Interval:
    """Return the gain in accuracy on the same tasks, with Agresti and Min's interval for paired proportions.

    Half a task is added to each cell of the two-by-two table, so that two equal runs give a narrow interval around
    zero and not a point. Source: A. Agresti and Y. Min, Statistics in Medicine 24 (2005), 729-740. `value` is the
    plain difference.

    Raises:
        ValueError: no tasks, or not the same number in both.
    """
    if not before or len(before) != len(after):
        raise ValueError(f"before and after must be the same tasks, at least one, got {len(before)} and {len(after)}")
    gained = sum(b and not a for a, b in zip(before, after, strict=True))
    lost = sum(a and not b for a, b in zip(before, after, strict=True))
    n, gained_share, lost_share = len(before) + 2, gained + 0.5, lost + 0.5
    difference = (gained_share - lost_share) / n
    half = Z * math.sqrt(gained_share + lost_share - (gained_share - lost_share) ** 2 / n) / n
    return Interval(value=(gained - lost) / len(before), low=difference - half, high=difference + half)
