"""The workloads: which model, how many prompts and completions, how long, and what they earn.

| model   | what it is                                                                                             |
|---------|--------------------------------------------------------------------------------------------------------|
| shipped | the model that ships with Paceline, on the problems of the dataset `arithmetic`                        |
| 30m     | random weights: Qwen2, 8 layers, width 512, 8 heads, 2 key-value heads, 8,192 tokens, 30.9 M parameters |

| lengths | what ends a completion                                                                                  |
|---------|---------------------------------------------------------------------------------------------------------|
| fixed   | `max_new_tokens` alone: every contender makes exactly the same number of tokens                         |
| natural | an end token or `max_new_tokens`; the random model has 128 end tokens, so that one token in 64 ends it  |

| reward     | what it is                                                                                          |
|------------|-----------------------------------------------------------------------------------------------------|
| accuracy   | 1 for the right answer in answer tags: some groups are all right or all wrong and teach nothing     |
| mean_token | mean token id: completions of a group differ, so every completion of every group is trained on      |
"""

from dataclasses import dataclass, replace
from typing import Literal

Size = Literal["shipped", "30m"]

LEARNING_RATE = 1e-6
"""Of the step: small, so that the contenders' models stay alike and with them the lengths of completions."""
EPSILONS = (0.2, 0.28)
"""Clip bounds of the step, low and high."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """One thing to measure; every repetition has prompts of its own, the same for all contenders."""

    size: Size
    lengths: Literal["fixed", "natural"]
    prompts: int
    """Per repetition."""
    num_generations: int
    """Completions per prompt."""
    max_new_tokens: int
    reward: Literal["accuracy", "mean_token"] = "mean_token"
    """Only the step has one."""
    repetitions: int = 5
    """After a warm-up."""

    @property
    def completions(self) -> int:
        """Per repetition."""
        return self.prompts * self.num_generations


GENERATE = {
    "shipped-fixed": Workload(size="shipped", lengths="fixed", prompts=32, num_generations=8, max_new_tokens=32),
    "shipped-natural": Workload(size="shipped", lengths="natural", prompts=32, num_generations=8, max_new_tokens=56),
    "30m-fixed": Workload(
        size="30m", lengths="fixed", prompts=16, num_generations=8, max_new_tokens=128, repetitions=3
    ),
    "30m-natural": Workload(
        size="30m", lengths="natural", prompts=16, num_generations=8, max_new_tokens=128, repetitions=3
    ),
}
STEP = {
    "shipped-natural": Workload(
        size="shipped", lengths="natural", prompts=32, num_generations=8, max_new_tokens=56, reward="accuracy"
    ),
    "shipped-fixed": Workload(size="shipped", lengths="fixed", prompts=32, num_generations=8, max_new_tokens=32),
    "30m-fixed": Workload(size="30m", lengths="fixed", prompts=8, num_generations=8, max_new_tokens=128, repetitions=3),
}


def quick(workload: Workload) -> Workload:
    """The same on a few tokens, to try the benchmark itself; its figures mean nothing."""
    return replace(
        workload, prompts=4, num_generations=4, max_new_tokens=min(workload.max_new_tokens, 24), repetitions=2
    )


def find(table: dict[str, Workload], name: str, *, is_quick: bool) -> Workload:
    """A workload of `table` by its name."""
    return quick(table[name]) if is_quick else table[name]
