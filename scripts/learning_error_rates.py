"""How often the rules of `paceline.metrics.learning` call noise learning, when they are asked after every step.

python scripts/learning_error_rates.py [RUNS]

Prints the rates behind docs/watching.md: runs whose reward (or held-out accuracy) does not change, and the share of
them that is called learning after any step. Windows and standard errors are those of `reward_shift`, computed from sums
over all runs at once; a test holds both to each other.
"""

import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from paceline.metrics.learning import FAR, LONGEST, SHORTEST, accuracy_shift
from paceline.metrics.statistics import wilson

Series = NDArray[np.float64]
"""Runs by steps."""
AT_ONCE = 1_000
LENGTHS = (100, 1_000)


def ever_risen(rewards: Series) -> NDArray[np.bool_]:
    """By run: whether the reward counts as risen after any step."""
    runs, steps = rewards.shape
    centred = rewards - rewards.mean()  # sums of squares keep their digits
    start = np.zeros((runs, 1))
    sums = np.concatenate([start, centred.cumsum(axis=1)], axis=1)
    squares = np.concatenate([start, (centred**2).cumsum(axis=1)], axis=1)
    found = np.zeros(runs, dtype=bool)
    for count in range(3 * SHORTEST, steps + 1):
        window = min(count // 3, LONGEST)
        first, last = (0, window), (count - window, count)
        means = [(sums[:, end] - sums[:, begin]) / window for begin, end in (first, last)]
        spread = sum(
            (squares[:, end] - squares[:, begin] - window * mean**2).clip(0) / (window - 1)
            for (begin, end), mean in zip((first, last), means, strict=True)
        )
        found |= means[1] - means[0] > FAR * np.sqrt(spread / window) + 1e-12
    return found


def normal(draw: np.random.Generator, runs: int, steps: int) -> Series:
    """Means of many completions."""
    return draw.normal(size=(runs, steps))


def binary(prompts: int, generations: int, chances: tuple[float, ...]) -> Callable[..., Series]:
    """Means of right and wrong completions of prompts that differ in how hard they are."""

    def make(draw: np.random.Generator, runs: int, steps: int) -> Series:
        hard = draw.choice(chances, size=(runs, steps, prompts))
        return draw.binomial(generations, hard).mean(axis=2) / generations

    return make


def sticky(draw: np.random.Generator, runs: int, steps: int) -> Series:
    """A step's mean takes a fifth of the one before it, as neighbours of a sorted dataset might."""
    noise = draw.normal(size=(runs, steps))
    for step in range(1, steps):
        noise[:, step] += 0.2 * noise[:, step - 1]
    return noise


NOISE: dict[str, Callable[..., Series]] = {
    "normal": normal,
    "32 prompts of 8, hard and easy": binary(32, 8, (0.02, 0.3, 0.9)),
    "8 prompts of 4, hard and easy": binary(8, 4, (0.05, 0.3, 0.8)),
    "1 prompt of 4": binary(1, 4, (0.2, 0.5)),
    "32 prompts of 8, 1 in 100 right": binary(32, 8, (0.01,)),
    "each step a fifth of the one before": sticky,
}


def accuracies(draw: np.random.Generator, *, tasks: int, looks: int) -> bool:
    """Whether any of so many evaluations of a model that does not change is called better; drawn anew each time,
    though a run asks the same tasks."""
    evals = list[dict[str, float]]()
    for correct in draw.binomial(tasks, 0.3, size=looks + 1):
        found = wilson(int(correct), tasks)
        evals.append({"accuracy": found.value, "ci_low": found.low, "ci_high": found.high})
        shift = accuracy_shift(evals, sets=1)
        if shift is not None and shift.direction > 0:
            return True
    return False


def main(runs: int) -> None:
    print(f"| noise, {runs:,} runs each | " + " | ".join(f"{steps:,} steps" for steps in LENGTHS) + " |")
    print("|---|" + "---|" * len(LENGTHS))
    for name, make in NOISE.items():
        shares = []
        for steps in LENGTHS:
            draw = np.random.default_rng(0)
            parts = [ever_risen(make(draw, min(AT_ONCE, runs), steps)) for _ in range(max(1, runs // AT_ONCE))]
            shares.append(f"{100 * np.concatenate(parts).mean():.2f} %")
        print(f"| {name} | " + " | ".join(shares) + " |")
    draw = np.random.default_rng(0)
    for tasks, looks in ((100, 14), (1_000, 14), (1_000, 100)):
        share = np.mean([accuracies(draw, tasks=tasks, looks=looks) for _ in range(runs // 10)])
        print(f"held-out accuracy, {tasks:,} tasks, {looks} evaluations: {100 * share:.2f} %")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
