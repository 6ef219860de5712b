"""From repetitions to figures: medians, ratios, and whether two contenders did the same work. Pure functions."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median, variance

MOST_STANDARD_ERRORS = 4.0
"""Means of random lengths or rewards further apart than this are not of one distribution."""

Summary = dict[str, float]


def summary(values: Sequence[float]) -> Summary:
    """What later comparisons need of a sample: count, mean, variance (0 for one value) and sum."""
    spread = variance(values) if len(values) > 1 else 0.0
    return {"count": len(values), "mean": fmean(values), "variance": spread, "sum": math.fsum(values)}


def standard_errors_apart(one: Summary, other: Summary) -> float:
    """Distance of two means in standard errors of their difference; 0 for equal means, whatever the variances.

    >>> standard_errors_apart(summary([1.0, 3.0]), summary([4.0, 6.0]))
    2.121320343559643
    """
    distance = abs(one["mean"] - other["mean"])
    error = math.sqrt(one["variance"] / one["count"] + other["variance"] / other["count"])
    if distance == 0.0:
        return 0.0
    return distance / error if error else math.inf


def rates(repetitions: Sequence[Mapping[str, float]]) -> list[float]:
    """Tokens per second of each repetition."""
    return [one["tokens"] / one["seconds"] for one in repetitions]


def disagreements(name: str, mine: Sequence[Mapping], peer: Sequence[Mapping], *, exact: Sequence[str]) -> list[str]:
    """Sentences about where a peer's repetitions were not the same work; empty when they were.

    Args:
        name: the peer.
        mine: repetitions of Paceline, with `prompts`, `lengths` (a summary), maybe `rewards` (one too).
        peer: repetitions of the peer, in the same order.
        exact: keys that must be equal, repetition by repetition.
    """
    found = []
    mine = mine[: len(peer)]  # a peer may have fewer
    for number, (one, other) in enumerate(zip(mine, peer, strict=True), 1):
        for key in exact:
            if one[key] != other[key]:
                found.append(f"{name}, repetition {number}: {key} is {other[key]}, Paceline's {one[key]}")
    for key in ("lengths", "rewards"):
        if key in mine[0]:
            apart = standard_errors_apart(pooled([one[key] for one in mine]), pooled([one[key] for one in peer]))
            if apart > MOST_STANDARD_ERRORS:
                found.append(f"{name}: mean of {key} is {apart:.1f} standard errors from Paceline's")
    return found


def pooled(summaries: Sequence[Summary]) -> Summary:
    """The summary of all samples together."""
    count = sum(one["count"] for one in summaries)
    total = math.fsum(one["sum"] for one in summaries)
    mean = total / count
    squares = math.fsum(
        one["variance"] * (one["count"] - 1) + one["count"] * (one["mean"] - mean) ** 2 for one in summaries
    )
    return {"count": count, "mean": mean, "variance": squares / (count - 1) if count > 1 else 0.0, "sum": total}


def ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """Median over median."""
    return median(values) / median(others)


def fastest_of_each_peer(costs: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """By peer, its fastest contender: two are compared on the repetitions that both have.

    Args:
        costs: by contender, what each repetition took, in the order of the repetitions.

    >>> fastest_of_each_peer({"vllm-float32": [9.0], "vllm-bfloat16": [7.0, 11.0, 12.0], "generate-float32": [1.0]})
    {'vllm': 'vllm-bfloat16', 'generate': 'generate-float32'}
    """
    fastest: dict[str, str] = {}
    for name, taken in costs.items():
        peer = name.partition("-")[0]
        best = costs[fastest.setdefault(peer, name)]
        shared = min(len(taken), len(best))
        if median(taken[:shared]) < median(best[:shared]):
            fastest[peer] = name
    return fastest
