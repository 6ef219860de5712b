"""The workloads: which model, how many prompts and completions, how long, and what they earn.

| model     | what it is                                                                                           |
|-----------|------------------------------------------------------------------------------------------------------|
| shipped   | the model that ships with Paceline (147,000 parameters), on the problems of the dataset `arithmetic` |
| 30m       | Qwen2 with random weights: 8 layers, width 512, 8 heads, 2 key-value heads, 8,192 tokens              |
| 135m      | the shape of SmolLM2-135M with random weights: 30 layers, width 576, 49,152 tokens, tied              |
| smollm2   | SmolLM2-135M-Instruct itself, on the problems of `make real`, which gets its file                     |
| qwen-0.5b | the exact shape of Qwen2.5-0.5B with random weights: 24 layers, width 896, 151,936 tokens, tied       |
| qwen-1.5b | the same for Qwen2.5-1.5B: 28 layers, width 1,536                                                     |
| qwen-7b   | the same for Qwen2.5-7B: 28 layers, width 3,584, not tied; its weights are made where they are used   |
| FAMILY-N  | random weights, about N, in the shape of Gemma 3, Qwen3.5, gpt-oss or Qwen3-MoE                       |

| lengths | what ends a completion                                                                                 |
|---------|--------------------------------------------------------------------------------------------------------|
| drawn   | its own limit, lognormal with sigma 0.7: every contender makes exactly these numbers of tokens          |
| equal   | `max_new_tokens` alone, for every completion                                                           |
| natural | an end token or `max_new_tokens`                                                                       |

| reward     | what it is                                                                                          |
|------------|-----------------------------------------------------------------------------------------------------|
| accuracy   | 1 for the right answer in answer tags: some groups are all right or all wrong and teach nothing     |
| mean_token | mean token id: completions of a group differ, so every completion of every group is trained on      |

Only the standard library is imported here: environments without Paceline read it too.
"""

import math
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, get_args

FamilySize = Literal[
    "gemma3-10m", "qwen3.5-10m", "gpt-oss-10m", "qwen3-moe-10m",
    "gemma3-100m", "qwen3.5-100m", "gpt-oss-100m", "qwen3-moe-100m",
]  # fmt: skip
Size = Literal["shipped", "30m", "135m", "smollm2", "qwen-0.5b", "qwen-1.5b", "qwen-7b"] | FamilySize
WITHOUT_WEIGHTS = ("qwen-7b",)
"""Sizes whose directory holds no weights, which would take minutes to make on a CPU, to write and to read again: each
contender makes random ones on its own device."""
Lengths = Literal["drawn", "equal", "natural"]

SIGMA = 0.7
"""Of drawn lengths: the longest of 64 is then about five times the median, where no cap holds it."""
LEARNING_RATE = 1e-6
"""Of the step: small, so that the contenders' models stay alike and with them the lengths of completions."""
LORA_RANK = 16
"""Of the step's adapters, on all linear layers; alpha is twice that."""
EPSILONS = (0.2, 0.28)
"""Clip bounds of the step, low and high."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """One thing to measure; every repetition has prompts of its own, the same for all contenders."""

    size: Size
    lengths: Lengths
    prompts: int
    """Per repetition."""
    num_generations: int
    """Completions per prompt."""
    max_new_tokens: int
    """The longest completion."""
    median_length: int = 0
    """Of drawn lengths before they are capped, tokens."""
    prompt_lengths: tuple[int, int] = (60, 120)
    """Shortest and longest prompt of a random model, tokens; uniform between them."""
    reward: Literal["accuracy", "mean_token"] = "mean_token"
    """Only the step has one."""
    repetitions: int = 5
    """After a warm-up."""
    warm_up_tokens: int | None = None
    """Completions of the warm-up are cut to this; None: they are as long as others."""
    takes_turns: bool = True
    """Contenders stay in memory together and alternate; otherwise one has the machine after the other."""

    @property
    def completions(self) -> int:
        """Per repetition."""
        return self.prompts * self.num_generations


def completion_limits(workload: Workload, repetition: int) -> list[tuple[int, ...] | None]:
    """The tokens of every completion of every prompt; None for a prompt whose completions end by themselves.

    Repetition 0 is the warm-up.
    """
    if workload.lengths == "natural":
        return [None] * workload.prompts
    cap = workload.max_new_tokens
    if repetition == 0 and workload.warm_up_tokens is not None:
        cap = min(cap, workload.warm_up_tokens)
    rng = Random(f"lengths of repetition {repetition}")
    return [
        tuple(min(cap, _drawn(workload, rng)) for _ in range(workload.num_generations)) for _ in range(workload.prompts)
    ]


def _drawn(workload: Workload, rng: Random) -> int:
    if workload.lengths == "equal":
        return workload.max_new_tokens
    return max(1, round(rng.lognormvariate(math.log(workload.median_length), SIGMA)))


SHIPPED = Workload(size="shipped", lengths="natural", prompts=16, num_generations=16, max_new_tokens=56)
"""Each workload's own: short answers, whose lengths the model chooses."""
MEDIUM = Workload(size="30m", lengths="drawn", prompts=8, num_generations=8, max_new_tokens=256, median_length=92)
"""Mean length 110."""
REAL = replace(MEDIUM, size="smollm2", lengths="equal", num_generations=16, max_new_tokens=20, takes_turns=False)
"""As in `examples/smollm2.yaml`: prompts of about 50 tokens, and nearly all completions are cut."""
LARGE = Workload(
    size="qwen-0.5b",
    lengths="drawn",
    prompts=2,
    num_generations=8,
    max_new_tokens=512,
    median_length=130,
    prompt_lengths=(200, 600),
    warm_up_tokens=4,
)
"""Mean length 163."""
ON_A_GPU = replace(
    LARGE, prompts=16, num_generations=16, max_new_tokens=2048, median_length=400, prompt_lengths=(200, 512)
)
"""256 completions, mean length 500."""
VERY_LONG = replace(
    ON_A_GPU,
    prompts=1,
    num_generations=8,
    max_new_tokens=32_000,
    median_length=16_000,
    repetitions=1,
    takes_turns=False,
)
"""8 completions; four in ten are longer than 19,000 tokens."""

GENERATE = {
    "shipped": SHIPPED,
    "30m": MEDIUM,
    "30m-fixed": replace(MEDIUM, lengths="equal", max_new_tokens=128),
    "smollm2": REAL,
    "qwen-0.5b": LARGE,
    "qwen-0.5b-long": ON_A_GPU,
    "qwen-1.5b-long": replace(ON_A_GPU, size="qwen-1.5b"),
    "qwen-7b-long": replace(ON_A_GPU, size="qwen-7b", takes_turns=False, repetitions=2),
    "qwen-0.5b-1024": replace(ON_A_GPU, prompts=64),
}
STEP = {
    "shipped": replace(SHIPPED, reward="accuracy"),
    "30m": MEDIUM,
    "30m-fixed": replace(MEDIUM, lengths="equal", max_new_tokens=128),
    "smollm2": replace(REAL, repetitions=2),
    "qwen-0.5b": replace(LARGE, prompts=1, takes_turns=False),
    "qwen-0.5b-long": replace(ON_A_GPU, takes_turns=False, repetitions=2),
    "qwen-1.5b-long": replace(ON_A_GPU, size="qwen-1.5b", takes_turns=False, repetitions=2),
    "qwen-0.5b-32k": VERY_LONG,
}
BUSY = {
    "shipped": replace(SHIPPED, reward="accuracy", repetitions=24),
    "30m": replace(MEDIUM, lengths="equal", prompts=4, max_new_tokens=24, repetitions=9),
    "135m": replace(
        MEDIUM, size="135m", lengths="equal", prompts=2, max_new_tokens=8, prompt_lengths=(16, 24), repetitions=9
    ),
}
"""Short, since a contender that spins takes ten times as long beside another process.

Three repetitions of each, seven of the first.
"""
FAMILIES: dict[str, Workload] = {
    size: replace(MEDIUM, size=size, prompts=4, max_new_tokens=128, median_length=64, repetitions=3)
    for size in get_args(FamilySize)
}
"""Prompts of 60 to 120 tokens and completions of up to 128, where windows hold 64."""
ON_CPU = ("shipped", "30m", "30m-fixed", "smollm2", "qwen-0.5b")
"""What a benchmark measures on a CPU unless it is told otherwise."""
ON_CUDA = ("qwen-0.5b-long", "qwen-1.5b-long")
"""And on a GPU."""


def quick(workload: Workload) -> Workload:
    """The same on a few tokens, to try the benchmark itself; its figures mean nothing."""
    return replace(
        workload,
        prompts=2,
        num_generations=4,
        max_new_tokens=min(workload.max_new_tokens, 24),
        median_length=min(workload.median_length, 10),
        prompt_lengths=(20, 40),
        repetitions=2,
    )


def find(table: dict[str, Workload], name: str, *, is_quick: bool) -> Workload:
    """A workload of `table` by its name."""
    return quick(table[name]) if is_quick else table[name]
