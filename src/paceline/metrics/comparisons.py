"""Two measurements of one set of tasks held to each other, task by task, in plain floats.

A task's value is the share of its completions that were right: 0 or 1 with one completion.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.metrics.intervals import Interval, Z, paired_difference

LEVEL = 0.05
"""A difference counts where chance alone would make one as large less often than this."""
Z_POWER = 0.8416212335729143
"""The standard normal's 80 % point."""
CHANGING = 0.2
"""Share of tasks that are assumed to be right in one of two measurements only."""
RESAMPLES = 2_000
"""Their 50th from either end has an error of its own of about a twentieth of the interval's half."""
AT_ONCE = 1 << 20
"""Tasks drawn at once: 8 MiB."""
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
"""SplitMix64's step: 2^64 over the golden ratio."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What changed between two measurements of the same tasks."""

    num_tasks: int
    """Graded both times."""
    gained: int
    """Tasks with more right completions than before."""
    lost: int
    difference: Interval
    """Of the means: Agresti and Min's interval with one completion per task, else the bootstrap's."""
    bootstrap: Interval
    p_value: float
    """Exact McNemar test of `gained` against `lost`."""


def compare(before: Sequence[float], after: Sequence[float]) -> Comparison:
    """Tasks in the same order, each with its share of right completions.

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
    """The same from the completions of two evaluations (`task_id`, `correct`); None: no task was graded both times."""
    first, last = _shares(before), _shares(after)
    both = [task for task in first if task in last]
    return compare([first[task] for task in both], [last[task] for task in both]) if both else None


def _shares(records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Each task's share of right completions, of those that were graded."""
    verdicts: dict[str, list[bool]] = {}
    for record in records:
        if "correct" in record and isinstance(record["correct"], bool):
            verdicts.setdefault(str(record["task_id"]), []).append(record["correct"])
    return {task: sum(found) / len(found) for task, found in verdicts.items()}


def mcnemar(gained: int, lost: int) -> float:
    """Chance of a split at least as uneven if every changed task were as likely to be gained as lost; two-sided, exact.

        p = min(1, 2 * sum over i <= min(gained, lost) of C(gained + lost, i) / 2^(gained + lost))

    Source: Q. McNemar, Psychometrika 12 (1947), 153-157, with the binomial distribution in the place of chi-squared.
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
    """Mean of the tasks' differences, and the middle 95 % of the means of tasks drawn with replacement.

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
    """Positions of `n` tasks drawn with replacement, one row for each resample.

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
    """SplitMix64's output for the state `number`."""
    bits = (number + GOLDEN) & MASK
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & MASK
    return bits ^ (bits >> 31)


def detectable_difference(n: int, *, changing: float = CHANGING) -> float | None:
    """Smallest difference of two accuracies on the same `n` tasks that McNemar's test finds four times in five.

    The least d with n >= (z sqrt(c) + z' sqrt(c - d^2))^2 / d^2, where z is the 97.5 % and z' the 80 % point of the
    normal distribution and c, the share of tasks that change sides, is `changing`, or d itself where that is more: then
    all of them change to one side. None: `n` is too small for any.

    Source: R. J. Connor, Biometrics 43 (1987), 207-211.
    """

    def needed(d: float) -> float:
        c = max(changing, d)
        return (Z * math.sqrt(c) + Z_POWER * math.sqrt(max(0.0, c - d * d))) ** 2 / (d * d)

    if needed(1.0) > n:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if needed(middle) <= n else (middle, high)
    return high


def level_of_best(looks: int) -> float:
    """The p-value below which the best of so many evaluations counts as better: Bonferroni's share of 0.05.

    >>> level_of_best(10)
    0.005
    """
    return LEVEL / looks


def probability(p: float) -> str:
    """A test's p-value with two figures, or that it is smaller than anybody cares for.

    >>> probability(0.03906), probability(1e-30)
    ('p = 0.039', 'p < 1e-6')
    """
    return "p < 1e-6" if p < 1e-6 else f"p = {p:.2g}"
