"""Tokens are drawn from the stated distribution by numbers that depend on key and position alone."""

import math

import pytest
import torch

from paceline.engines import Sampling, sample_key
from paceline.engines.sampling import as_signed_64, draw, truncated, uniforms


def sampling(**options) -> Sampling:
    return Sampling(max_completion_length=8, **options)


def uniforms_of(key: int, count: int) -> torch.Tensor:
    return uniforms(torch.full((count,), as_signed_64(key)), torch.arange(count))


def kept(scores: list[float], **options) -> list[int]:
    return truncated(torch.tensor([scores]), sampling(**options))[0].isfinite().nonzero().flatten().tolist()


def chi_square(counts: torch.Tensor, probs: torch.Tensor) -> float:
    expected = probs * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def test_uniform_numbers_are_the_outputs_of_splitmix64():
    # First outputs of the generator seeded with 1234567, as its authors publish them.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    expected = [((bits >> 14) + 0.5) / 2**50 for bits in published]
    assert uniforms_of(1234567, 3).tolist() == expected


def test_uniform_numbers_are_spread_evenly_and_stay_inside_the_interval():
    values = uniforms_of(sample_key(0, "train", "a", 0, 0), 20_000)
    assert values.min() > 0
    assert values.max() < 1
    counts = torch.bincount((values * 20).long(), minlength=20).double()
    assert chi_square(counts, torch.full((20,), 0.05, dtype=torch.float64)) < 43.8  # 19 degrees of freedom, p = 0.001


def test_keys_tell_apart_seed_purpose_task_occurrence_and_sample():
    keys = {
        sample_key(0, "train", "a", 0, 0),
        sample_key(1, "train", "a", 0, 0),
        sample_key(0, "eval", "a", 0, 0),
        sample_key(0, "train", "b", 0, 0),
        sample_key(0, "train", "a", 1, 0),
        sample_key(0, "train", "a", 0, 1),
    }
    assert len(keys) == 6
    assert all(0 <= key < 2**64 for key in keys)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("vocabulary", [7, 30])  # 7 is prime: the last block is padded
def test_sampled_frequencies_follow_the_softmax_at_the_temperature(temperature, vocabulary):
    logits = torch.linspace(-1.5, 1.5, vocabulary).roll(2)
    rows = 20_000
    tokens, logprobs = draw(logits.expand(rows, -1), uniforms_of(7, rows), sampling(temperature=temperature))
    expected = (logits.double() / temperature).softmax(-1)
    counts = torch.bincount(tokens, minlength=vocabulary).double()
    limit = (vocabulary - 1) + 4.5 * math.sqrt(2 * (vocabulary - 1))
    assert chi_square(counts, expected) < limit
    torch.testing.assert_close(logprobs.double(), expected.log()[tokens], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({}, [0, 1, 2, 3]),
        ({"top_k": 2}, [1, 3]),
        ({"top_k": 9}, [0, 1, 2, 3]),
        ({"top_p": 0.5}, [1]),  # 0.5 reaches 0.5
        ({"top_p": 0.51}, [1, 3]),
        ({"top_p": 0.9}, [0, 1, 3]),
        ({"min_p": 0.25}, [0, 1, 3]),  # at least 0.125
        ({"min_p": 0.7}, [1]),
        ({"top_k": 2, "top_p": 0.65}, [1, 3]),  # 0.5 and 0.3 renormalised: 0.625 and 0.375
        ({"top_k": 2, "top_p": 0.6}, [1]),
    ],
)
def test_truncation_keeps_exactly_the_right_tokens(options, tokens):
    scores = [math.log(p) for p in (0.15, 0.5, 0.05, 0.3)]
    assert kept(scores, **options) == tokens


def test_truncated_draws_stay_in_the_kept_set_and_report_its_logprobs():
    logits = torch.tensor([0.15, 0.5, 0.05, 0.3]).log().expand(2000, -1)
    tokens, logprobs = draw(logits, uniforms_of(3, 2000), sampling(top_k=2))
    assert set(tokens.tolist()) == {1, 3}
    expected = torch.tensor([-math.inf, math.log(0.625), -math.inf, math.log(0.375)])
    torch.testing.assert_close(logprobs, expected[tokens])


def test_the_ends_of_the_interval_draw_the_first_and_the_last_possible_token():
    logits = torch.full((2, 9), -math.inf)
    logits[:, 3] = logits[:, 6] = 0.0
    ends = torch.tensor([2.0**-51, 1 - 2.0**-51], dtype=torch.float64)
    tokens, logprobs = draw(logits, ends, sampling())
    assert tokens.tolist() == [3, 6]
    torch.testing.assert_close(logprobs, torch.full((2,), -math.log(2)))


def test_greedy_takes_the_most_probable_token_with_its_logprob_at_temperature_one():
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    tokens, logprobs = draw(logits, torch.tensor([0.99], dtype=torch.float64), sampling(temperature=0))
    assert tokens.tolist() == [1]
    torch.testing.assert_close(logprobs, logits.log_softmax(-1)[:, 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [1, 9, 256, 1000, 5003])
@pytest.mark.parametrize("temperature", [0, 0.7, 1.0])
def test_the_compiled_draw_and_that_of_torch_take_the_same_tokens(dtype, vocabulary, temperature):
    logits = (torch.randn(200, vocabulary, generator=torch.Generator().manual_seed(3)) * 3).to(dtype)
    uniform, options = uniforms_of(11, 200), sampling(temperature=temperature)
    tokens, logprobs = draw(logits, uniform, options)
    exact_tokens, exact = draw(logits.double(), uniform, options)
    # a uniform number so close to the border of two tokens that rounding decides is rarer than one in 10,000
    assert torch.equal(tokens, exact_tokens)
    torch.testing.assert_close(logprobs.double(), exact, atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_give_a_logprob_that_is_not(bad, dtype, temperature):
    logits = torch.zeros(3, 300, dtype=dtype)
    logits[0, 299] = bad
    logits[2] = -math.inf
    tokens, logprobs = draw(logits, uniforms_of(1, 3), sampling(temperature=temperature))
    assert logprobs.isfinite().tolist() == [False, True, False]
    assert ((tokens >= 0) & (tokens < 300)).all()
