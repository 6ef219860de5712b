"""Comparison of two evaluations on the same tasks, task by task, in plain floats.

A task's value is the share of its completions that were right: 0 or 1 with one completion.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.metrics.statistics import Interval, Z, paired_difference

LEVEL = 0.05
"""Significance level of a difference."""
Z_POWER = 0.8416212335729143
"""80 % point of the standard normal distribution."""
CHANGING = 0.2
"""Share of tasks that are assumed to be right in one of two evaluations only."""
RESAMPLES = 2_000
"""Resamples of the bootstrap: the error of its 95 % limits is about a twentieth of the interval's half-width."""
AT_ONCE = 1 << 20
"""Tasks drawn at once: 8 MiB."""
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
"""Step of SplitMix64: 2^64 over the golden ratio."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Change between two evaluations of the same tasks."""

    num_tasks: int
    """Tasks graded both times."""
    gained: int
    """Tasks with more right completions than before."""
    lost: int
    difference: Interval
    """Difference of the means: Agresti and Min's interval with one completion per task, otherwise the bootstrap's."""
    bootstrap: Interval
    p_value: float
    """Exact McNemar test of `gained` against `lost`."""


def compare(before: Sequence[float], after: Sequence[float]) -> Comparison:
    """Compare tasks in the same order, each with its share of right completions.

    Raises:
        ValueError: no tasks, or not the same number in both.
    """
    if not before or len(before) != len(after):
        raise ValueError(f"before and after must be the same tasks, at least one, got {len(before)} and {len(after)}")
    gained = sum(b < a for b, a in zip(before, after, strict=True))
    lost = sum(b > a for b, a in zip(before, after, strict=True))
    bootstrap = paired_bootstrap([a - b for b, a in zip(before, after, strict=True)])
    whole = {*before, *after} <= {0.0, 1.0}
    difference = paired_difference([b == 1 for b in before], [a == 1 for a in after]) if whole else bootstrap
    return Comparison(
        num_tasks=len(before),
        gained=gained,
        lost=lost,
        difference=difference,
        bootstrap=bootstrap,
        p_value=mcnemar(gained, lost),
    )


def compare_records(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> Comparison | None:
    """Compare the completions of two evaluations (`task_id`, `correct`); None: no task was graded both times."""
    first, last = _shares(before), _shares(after)
    both = [task for task in first if task in last]
    return compare([first[task] for task in both], [last[task] for task in both]) if both else None


def _shares(records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return each task's share of right completions among those that were graded."""
    verdicts: dict[str, list[bool]] = {}
    for record in records:
        if "correct" in record and isinstance(record["correct"], bool):
            verdicts.setdefault(str(record["task_id"]), []).append(record["correct"])
    return {task: sum(correct) / len(correct) for task, correct in verdicts.items()}


def mcnemar(gained: int, lost: int) -> float:
    """Return the probability of a split at least as uneven if gains and losses are equally likely; two-sided, exact.

        p = min(1, 2 * sum over i <= min(gained, lost) of C(gained + lost, i) / 2^(gained + lost))

    Source: Q. McNemar, Psychometrika 12 (1947), 153-157, with the binomial distribution instead of chi-squared.
    With several completions per task it is the sign test of the tasks that rose against those that fell.

    >>> mcnemar(8, 1)
    0.0390625
    """
    changed, term, tail = gained + lost, 1, 0
    for i in range(min(gained, lost) + 1):
        tail += term
        term = term * (changed - i) // (i + 1)
    return min(1.0, 2 * tail / (1 << changed))


def paired_bootstrap(differences: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """Return the mean of the tasks' differences with a 95 % percentile bootstrap interval.

    The draws are a function of (seed, resample, position) alone, so the interval is the same wherever it is computed.
    Source: B. Efron, Annals of Statistics 7 (1979), 1-26; percentile interval.

    Raises:
        ValueError: no differences.
    """
    if not differences:
        raise ValueError("differences must hold at least one number")
    values, n = np.asarray(differences, dtype=np.float64), len(differences)
    rows = max(1, AT_ONCE // n)
    parts = [range(start, min(start + rows, resamples)) for start in range(0, resamples, rows)]
    means = np.sort(np.concatenate([values[drawn_tasks(seed, part, n)].mean(axis=1) for part in parts]))
    edge = round(resamples * LEVEL / 2)
    return Interval(value=math.fsum(differences) / n, low=float(means[edge - 1]), high=float(means[-edge]))


def drawn_tasks(seed: int, resamples: range, n: int) -> NDArray[np.uint64]:
    """Draw the positions of `n` tasks with replacement, one row per resample.

    SplitMix64 of a counter, which seed and resample start.
    """
    starts = np.array([(_mixed(seed) + 3 * _mixed(number + 1)) & MASK for number in resamples], dtype=np.uint64)
    bits = starts[:, None] + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    positions: NDArray[np.uint64] = ((bits >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32)
    return positions


def _mixed(number: int) -> int:
    """Return SplitMix64's output for the state `number`."""
    bits = (number + GOLDEN) & MASK
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & MASK
    return bits ^ (bits >> 31)


def detectable_difference(n: int) -> float | None:
    """Return the smallest difference of two accuracies on `n` tasks that McNemar's test finds with power 80 %.

    The least d with n >= (z sqrt(c) + z' sqrt(c - d^2))^2 / d^2, where z is the 97.5 % and z' the 80 % point of the
    normal distribution. The share of tasks that change sides, c, is `CHANGING`, or d itself if that is more: then all
    of them change to one side. None: `n` is too small for any.

    Source: R. J. Connor, Biometrics 43 (1987), 207-211.
    """

    def needed(d: float) -> float:
        c = max(CHANGING, d)
        return (Z * math.sqrt(c) + Z_POWER * math.sqrt(max(0.0, c - d * d))) ** 2 / (d * d)

    if needed(1.0) > n:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if needed(middle) <= n else (middle, high)
    return high


def level_of_best(looks: int) -> float:
    """Return the p-value below which the best of several evaluations is better: Bonferroni's share of 0.05.

    >>> level_of_best(10)
    0.005
    """
    return LEVEL / looks


def probability(p: float) -> str:
    """Format a p-value with two figures, or as below 1e-6.

    >>> probability(0.03906), probability(1e-30)
    ('p = 0.039', 'p < 1e-6')
    """
    return "p < 1e-6" if p < 1e-6 else f"p = {p:.2g}"
