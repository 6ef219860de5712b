"""avg@k, pass@k and maj@k: one number from several completions of a task.

`accuracy` with several completions is avg@k: the mean over tasks of the share that is right.
"""

import math
from collections.abc import Sequence

Vote = tuple[str | None, bool]
"""Answer that a completion states, or None, and whether the completion was right."""


def avg_at_k(correct: int, n: int) -> float:
    """Return the share of right completions among the `n` of one task."""
    return correct / n


def pass_at_k(correct: int, n: int, k: int) -> float:
    """Return the probability that at least one of `k` samples is right, given `correct` right ones among `n`.

    1 - C(n - correct, k) / C(n, k). Source: M. Chen et al., arXiv:2107.03374, Eq. 1.
    """
    return 1 - math.comb(n - correct, k) / math.comb(n, k)


def maj_at_k(votes: Sequence[Vote]) -> float:
    """Return the probability that the answer of most completions is right.

    Answers are the same where their texts are, but for spaces; completions without one do not vote. Of several answers
    with equally many votes one is drawn: their chances are averaged, as no order of completions may decide. An answer
    whose completions were graded unlike counts by the share of them that was right. 0.0 where nothing was stated.
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
