"""What sampling a step would take other numbers of producers, from the lengths of its completions.

Producers have even shares of a step's prompts, and its sampling ends with the slowest of them. An engine takes its
completions side by side, as many as there are slots; a position of all of them costs a fixed time and a time per row:

    seconds = per_position * positions + per_token * tokens

so that more producers divide the second part, and the first only where completions wait for slots.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.cluster.fleet import even_shares

Lengths = Sequence[Sequence[int]]
"""Tokens of a step's completions, group by group."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What the producers have to do in a step, of each number the one who has most."""

    positions: int
    """Of its completions, side by side in its slots, until the last one ends."""
    tokens: int
    completions: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Seconds of an engine."""

    per_position: float
    per_token: float

    def seconds(self, work: Work) -> float:
        """What work takes."""
        return self.per_position * work.positions + self.per_token * work.tokens


def largest_work(lengths: Lengths, *, num_producers: int, slots: int) -> Work:
    """A step's work for so many producers, each of which samples `slots` completions side by side.

    >>> largest_work([[5, 1], [2, 2]], num_producers=1, slots=4)
    Work(positions=5, tokens=10, completions=4)
    >>> largest_work([[5, 1], [2, 2]], num_producers=2, slots=4)
    Work(positions=5, tokens=6, completions=2)
    """
    shares = [
        [length for group in lengths[share] for length in group] for share in even_shares(len(lengths), num_producers)
    ]
    return Work(
        positions=max(positions_of(share, slots) for share in shares),
        tokens=max(map(sum, shares)),
        completions=max(map(len, shares)),
    )


def positions_of(lengths: Sequence[int], slots: int) -> int:
    """Positions until the last completion ends: the next one that waits takes the first slot that is free.

    >>> positions_of([5, 1, 2, 2], slots=2)
    5
    """
    ends = [0] * slots
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def fit_cost(works: Sequence[Work], seconds: Sequence[float]) -> Cost:
    """The cost that comes nearest to what was measured, by least squares, with no part below 0.

    Where steps are too alike to tell positions from tokens it is all of positions: then more producers promise nothing.
    """
    positions, tokens = [one.positions for one in works], [one.tokens for one in works]
    pp, pt, tt = _dot(positions, positions), _dot(positions, tokens), _dot(tokens, tokens)
    ps, ts = _dot(positions, seconds), _dot(tokens, seconds)
    determinant = pp * tt - pt * pt
    candidates = [Cost(per_position=ps / pp, per_token=0.0), Cost(per_position=0.0, per_token=ts / tt)]
    if determinant > 1e-9 * pp * tt:
        both = Cost(per_position=(ps * tt - ts * pt) / determinant, per_token=(ts * pp - ps * pt) / determinant)
        candidates = [both, *candidates] if min(both.per_position, both.per_token) >= 0 else candidates
    errors = [
        math.fsum((one.seconds(work) - taken) ** 2 for work, taken in zip(works, seconds, strict=True))
        for one in candidates
    ]
    return candidates[errors.index(min(errors))]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))
