"""Learning rate of each step, and the coefficient of an entropy bonus that follows a target, as pure functions."""

import math
from typing import Literal


def warmup_updates(warmup: float, total: int) -> int:
    """Return the updates before the peak in transformers' sense: from 1 on their number, below 1 a share, rounded up.

    >>> warmup_updates(10, 50), warmup_updates(0.05, 50)
    (10, 3)
    """
    return math.ceil(warmup * total) if 0 < warmup < 1 else int(warmup)


def learning_rate(
    step: int,
    *,
    peak: float,
    schedule: Literal["constant", "linear", "cosine"],
    warmup_steps: int,
    total_steps: int,
    min_ratio: float,
) -> float:
    """Return the learning rate of step 1, 2, ..., `total_steps`.

    Rises linearly to `peak` at step `warmup_steps`, then stays, or falls on a line or on half a cosine. The fall ends
    one step after the last at `peak * min_ratio`, so that no step is taken at a rate of 0, and stays there.
    The rise begins at `peak / warmup_steps`; in transformers it begins at 0, and each rate comes one update later.

    >>> [learning_rate(s, peak=1.0, schedule="linear", warmup_steps=2, total_steps=3, min_ratio=0.0) for s in (1, 2, 3)]
    [0.5, 1.0, 0.5]
    """
    if step < warmup_steps:
        return peak * step / warmup_steps
    top, end = max(warmup_steps, 1), total_steps + 1
    if schedule == "constant" or end <= top:
        return peak
    progress = min(1.0, (step - top) / (end - top))
    fall = 1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return peak * (min_ratio + (1 - min_ratio) * fall)


def next_entropy_coef(coef: float, entropy: float, *, control: tuple[float, ...]) -> float:
    """Return the coefficient after an update of this mean entropy, by the four numbers of `entropy_target`.

    >>> next_entropy_coef(0.01, 0.15, control=(0.2, 0.0, 1.0, 0.005))
    0.015

    Source: Skywork-OR1, arXiv:2505.22312, section 3.2.
    """
    target, _, _, change = control
    return within_bounds(coef + (change if entropy <= target else -change), control=control)


def within_bounds(coef: float, *, control: tuple[float, ...]) -> float:
    """Return the coefficient, or the nearer of the two bounds of `entropy_target` if it lies beyond.

    >>> within_bounds(0.0, control=(0.2, 0.01, 1.0, 0.005))
    0.01
    """
    _, least, most, _ = control
    return min(max(coef, least), most)
