"""An update forwards the tokens that exist: no padding, no repeated prompt, on lengths as uneven as real ones."""

import math
from random import Random

import pytest
import torch

from paceline.config.objective import OptimConfig
from paceline.objective.cutting import cut
from paceline.objective.micro_batches import Sample, pack, token_weights
from tests.support.episodes import sample as make_sample

SIGMA = 0.7
"""Of lognormal lengths: the longest of 64 is about five times the median."""


def group(number: int, prompt: int, lengths: list[int]) -> list[Sample]:
    return [
        make_sample(
            group=number,
            prompt_ids=(1,) * prompt,
            completion_ids=(2,) * length,
            advantage=1.0,
        )
        for length in lengths
    ]


def step(rng: Random, *, prompts: int, prompt_lengths: tuple[int, int], median: int, longest: int) -> list[Sample]:
    """Groups of 8 with lognormal lengths."""
    samples = []
    for number in range(prompts):
        lengths = [min(longest, max(1, round(rng.lognormvariate(math.log(median), SIGMA)))) for _ in range(8)]
        samples += group(number, rng.randint(*prompt_lengths), lengths)
    return samples


@pytest.mark.parametrize(
    "sizes",
    [
        {"prompts": 8, "prompt_lengths": (60, 120), "median": 92, "longest": 256},
        {"prompts": 2, "prompt_lengths": (200, 600), "median": 130, "longest": 512},
        {"prompts": 8, "prompt_lengths": (200, 600), "median": 180, "longest": 512},
    ],
    ids=["short prompts", "few long prompts", "many long prompts"],
)
def test_at_the_default_budget_nothing_but_the_tokens_that_exist_is_forwarded(sizes):
    for seed in range(20):
        samples = step(Random(seed), **sizes)
        everything = range(len(samples))
        cuts = cut(samples, trained=everything, micro_batch_tokens=OptimConfig().micro_batches("cpu")[0])
        weights = token_weights(samples, average="token", max_completion_length=sizes["longest"])
        batches = [pack(samples, weights, indices, dtype=torch.float32) for indices in cuts]
        prompts = sum({sample.group: len(sample.prompt_ids) for sample in samples}.values())
        exist = prompts + sum(len(sample.completion_ids) - 1 for sample in samples)
        assert sorted(at for indices in cuts for at in indices) == list(everything)
        assert sum(len(batch.input_ids) for batch in batches) <= 1.05 * exist
        assert sum(sum(batch.prompt_lengths) for batch in batches) <= 1.05 * prompts
