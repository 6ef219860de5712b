"""Seconds of a step with other numbers of producers and consumers, from the tokens in it.

Producers share a step's prompts evenly, and sampling ends with the slowest of them. Consumers share the trained tokens
evenly. A process costs a fixed time per forward pass and a time per token:

    seconds = per_pass * passes + per_token * tokens

An engine makes one pass per position of the completions in its slots; an update counts as one pass. So more processes
divide the second term, and the first only where completions wait for slots.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.training.rollouts.sharing import even_shares

Lengths = Sequence[Sequence[int]]
"""Tokens of a step's completions, group by group."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepWork:
    """Work of the busiest process in a step."""

    passes: int
    tokens: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Seconds of a process per pass and per token."""

    per_pass: float
    per_token: float

    def seconds(self, work: StepWork) -> float:
        """Seconds that this work takes."""
        return self.per_pass * work.passes + self.per_token * work.tokens

    def in_proportion(self, measured: float, before: StepWork, after: StepWork) -> float:
        """Scale `measured` seconds from one amount of work to another; unchanged if the cost is zero."""
        known = self.seconds(before)
        return measured * self.seconds(after) / known if known > 0 else measured


def sampling_work(lengths: Lengths, *, num_producers: int, slots: int) -> StepWork:
    """Work of a step for the busiest of `num_producers`, each with `slots` completions at a time.

    >>> sampling_work([[5, 1], [2, 2]], num_producers=1, slots=4)
    StepWork(passes=5, tokens=10)
    >>> sampling_work([[5, 1], [2, 2]], num_producers=2, slots=4)
    StepWork(passes=5, tokens=6)
    """
    shares = [
        [length for group in lengths[share] for length in group] for share in even_shares(len(lengths), num_producers)
    ]
    return StepWork(passes=max(passes_of(share, slots) for share in shares), tokens=max(map(sum, shares)))


def update_work(tokens: int, *, num_consumers: int) -> StepWork:
    """Work of a step for each of `num_consumers`."""
    return StepWork(passes=1, tokens=tokens / num_consumers)


def passes_of(lengths: Sequence[int], slots: int) -> int:
    """Positions until the last completion ends; a waiting completion takes the first free slot.

    >>> passes_of([5, 1, 2, 2], slots=2)
    5
    """
    ends = [0] * slots
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def fit_cost(works: Sequence[StepWork], seconds: Sequence[float]) -> Cost:
    """Least-squares fit of the cost, with no negative term.

    Where steps are too alike to tell passes from tokens, all cost goes to passes: then more processes promise nothing.
    """
    passes, tokens = [one.passes for one in works], [one.tokens for one in works]
    pp, pt, tt = _dot(passes, passes), _dot(passes, tokens), _dot(tokens, tokens)
    ps, ts = _dot(passes, seconds), _dot(tokens, seconds)
    candidates = [Cost(per_pass=ps / pp, per_token=0.0)]
    if tt > 0:
        candidates.append(Cost(per_pass=0.0, per_token=ts / tt))
    determinant = pp * tt - pt * pt
    if determinant > 1e-9 * pp * tt:
        both = Cost(per_pass=(ps * tt - ts * pt) / determinant, per_token=(ts * pp - ps * pt) / determinant)
        candidates += [both] if min(both.per_pass, both.per_token) >= 0 else []
    errors = [
        math.fsum((one.seconds(work) - taken) ** 2 for work, taken in zip(works, seconds, strict=True))
        for one in candidates
    ]
    return candidates[errors.index(min(errors))]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))
