"""Entropy in the objective: the tokens of high entropy, and a bonus whose coefficient follows a target."""

import torch
from jaxtyping import Float
from torch import Tensor


def top_entropy_threshold(entropies: Float[Tensor, " N"], *, share: float) -> float:
    """Return the entropy that the top `share` of an update's tokens have at least: their quantile 1 - share.

    Between two tokens it is interpolated, as `torch.quantile` does. It lies below that by rounding, so that tokens of
    equal entropy are all chosen or none, however a step is cut.

    >>> round(top_entropy_threshold(torch.tensor([0.1, 0.4, 0.2, 0.3, 0.5]), share=0.5), 3)
    0.3

    Source: Beyond the 80/20 rule, arXiv:2506.01939, whose share is 0.2.
    """
    ordered = entropies.double().sort().values
    place = (len(ordered) - 1) * (1 - share)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    threshold = float(ordered[low] + (place - low) * (ordered[high] - ordered[low]))
    return threshold - float(torch.finfo(entropies.dtype).eps ** 0.5) * abs(threshold)


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
