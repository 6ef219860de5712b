"""Mean, sample variance and standard deviation with exactly rounded sums; avg@k, pass@k and maj@k.

With several completions of a task, `accuracy` is avg@k: the mean over tasks of the share that is right.
"""

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
