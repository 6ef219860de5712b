"""Tokens drawn in Triton hold their uniform number in their interval of the exact distribution: on a GPU where there is
one, else by Triton's interpreter."""

import math
import os

import pytest
import torch

from paceline.engines.sampling import as_signed_64, uniforms
from paceline.kernels.cuda.drawing import BLOCK, draw_tokens, drawing_problem
from paceline.kernels.cuda.triton_check import triton_problem

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
tried = pytest.mark.skipif(
    triton_problem(HERE) is not None, reason=f"{triton_problem(HERE)}; TRITON_INTERPRET=1 needs no GPU"
)
precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
LEAST, MOST = 2.0**-51, 1 - 2.0**-51
"""The ends of what `uniforms` gives."""
INFINITY = math.inf


def random_logits(rows: int, vocabulary: int, dtype: torch.dtype, *, seed: int = 0, spread: float = 3) -> torch.Tensor:
    drawn = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))
    return (spread * drawn).to(HERE, dtype)


def places(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, device=HERE)


def spread_places(rows: int) -> torch.Tensor:
    """Uniform numbers of which the first two are the ends of their interval."""
    drawn = uniforms(torch.full((rows,), as_signed_64(5)), torch.arange(rows))
    drawn[:2] = torch.tensor([LEAST, MOST])[:rows]
    return drawn.to(HERE)


def of_only(vocabulary: int, tokens: list[int], dtype: torch.dtype) -> torch.Tensor:
    """A row of logits in which these tokens are equally probable and the others impossible."""
    logits = torch.full((1, vocabulary), -INFINITY, dtype=dtype, device=HERE)
    logits[0, tokens] = 0.0
    return logits


@tried
@precisions
@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
@pytest.mark.parametrize("vocabulary", [1, 7, 1000, 8192, 50_257])
def test_a_tokens_interval_holds_its_uniform_number(dtype, temperature, vocabulary):
    rows = 12
    logits, uniform = random_logits(rows, vocabulary, dtype), spread_places(rows)
    tokens, logprobs = draw_tokens(logits, uniform, temperature)
    exact = (logits.double() / temperature).log_softmax(-1)
    ends = exact.exp().cumsum(-1)
    end, logprob = (table.gather(1, tokens[:, None]).squeeze(1) for table in (ends, exact))
    # float32 sums move a border by less than 1e-6, so this is all that rounding may decide
    assert (uniform >= end - logprob.exp() - 1e-6).all()
    assert (uniform <= end + 1e-6).all()
    assert (logprobs.double() - logprob).abs().max() <= 1e-5
    assert logprobs.dtype == torch.float32
    # The interval of a token of 1e-6 is no test of it, so most must also be the very ones.
    wanted = torch.searchsorted(ends / ends[:, -1:], uniform[:, None], right=True).squeeze(1)
    assert (tokens == wanted).sum() >= rows - 1


@tried
@precisions
@pytest.mark.parametrize("vocabulary", [1, 7, 1000, 8192, 50_257])
def test_greedy_takes_the_first_of_the_largest(dtype, vocabulary):
    logits = random_logits(4, vocabulary, dtype)
    # ties: within a block, and of two blocks, if there are as many tokens
    logits[1, [vocabulary // 3, vocabulary - 1]] = logits[2, [vocabulary // 2, vocabulary // 2 - 1]] = 50.0
    tokens, logprobs = draw_tokens(logits, spread_places(4), 0.0)
    assert tokens.tolist() == logits.cpu().argmax(-1).tolist()
    exact = logits.double().log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)
    assert (logprobs.double() - exact).abs().max() <= 1e-5


@tried
@precisions
def test_a_number_on_a_border_draws_the_token_after_it(dtype):
    last = BLOCK + 1
    logits = of_only(2 * BLOCK + 900, [BLOCK - 1, BLOCK, last, 2 * BLOCK + 800], dtype)  # a quarter each
    uniform = places(LEAST, 0.25 - 1e-12, 0.25, 0.5, 0.75 - 1e-12, 0.75, MOST)
    tokens, logprobs = draw_tokens(logits.expand(len(uniform), -1), uniform, 1.0)
    wanted = [BLOCK - 1, BLOCK - 1, BLOCK, last, last, 2 * BLOCK + 800, 2 * BLOCK + 800]
    assert tokens.tolist() == wanted
    assert logprobs.tolist() == pytest.approx([-math.log(4)] * len(wanted), abs=1e-6)


@tried
@precisions
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_impossible_tokens_at_either_end_are_never_drawn(dtype, temperature):
    # whole blocks before and after, and the ends of the block between them
    logits = of_only(3 * BLOCK, list(range(BLOCK + 5, BLOCK + 400, 3)), dtype).expand(2, -1)
    tokens, logprobs = draw_tokens(logits, places(LEAST, MOST), temperature)
    assert tokens.tolist() == [BLOCK + 5, BLOCK + 5 if temperature == 0 else BLOCK + 398]
    assert logprobs.tolist() == pytest.approx([-math.log(132)] * 2, abs=1e-5)


@tried
def test_sums_that_end_short_of_the_target_draw_the_last_possible_token():
    """Shares of which no sum is exact, followed by impossible tokens."""
    logits = random_logits(64, 3 * BLOCK + 17, torch.float32, seed=2, spread=6)
    logits[:, 2 * BLOCK + 3 :] = -INFINITY
    tokens, logprobs = draw_tokens(logits, places(*[MOST] * 64), 1.0)
    assert (tokens < 2 * BLOCK + 3).all()
    assert logprobs.isfinite().all()


@tried
@precisions
@pytest.mark.parametrize("temperature", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("place", [0, BLOCK, 5001])
def test_a_certain_token_is_drawn_by_every_number_with_a_logprob_of_zero(dtype, temperature, place):
    logits = random_logits(3, 5002, dtype, spread=1)
    logits[:, place] = 1000.0
    tokens, logprobs = draw_tokens(logits, places(LEAST, 0.5, MOST), temperature)
    assert tokens.tolist() == [place] * 3
    assert logprobs.tolist() == [0.0] * 3


@tried
@pytest.mark.parametrize("bad", [math.nan, INFINITY])
@pytest.mark.parametrize("at_the_end", [False, True])
@pytest.mark.parametrize("vocabulary", [3000, 3 * BLOCK])  # a last block in parts; blocks that are no power of two
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@precisions
def test_logits_that_are_not_finite_show_in_their_rows_logprob(bad, at_the_end, vocabulary, temperature, dtype):
    logits = torch.zeros(4, vocabulary, dtype=dtype, device=HERE)
    logits[0, vocabulary - 1 if at_the_end else 0] = bad
    logits[2], logits[3] = -INFINITY, math.nan
    tokens, logprobs = draw_tokens(logits, places(LEAST, 0.5, 0.5, MOST), temperature)
    assert logprobs.isfinite().tolist() == [False, True, False, False]
    assert ((tokens >= 0) & (tokens < vocabulary)).all()


@tried
@pytest.mark.parametrize("temperature", [0.0, 0.1, 1.0])
def test_large_logits_neither_overflow_nor_vanish(temperature):
    logits = torch.full((3, 2 * BLOCK), -1e4, device=HERE)
    logits[0, [3, BLOCK]] = 1e4
    logits[1, 5] = -1e4 + 1
    logits[2, 9] = 3e38
    tokens, logprobs = draw_tokens(logits, places(0.75, 0.0001, 0.5), temperature)
    if temperature == 0:
        assert tokens.tolist() == [3, 5, 9]
        assert logprobs.tolist() == pytest.approx([-math.log(2), 1 - math.log(2 * BLOCK - 1 + math.e), 0.0], abs=1e-5)
    elif temperature == 1:
        # 0.0001 of 4095 + e is less than 1: the first token of the second row
        assert tokens.tolist() == [BLOCK, 0, 9]
        assert logprobs.tolist() == pytest.approx([-math.log(2), -math.log(2 * BLOCK - 1 + math.e), 0.0], abs=1e-5)
    else:
        # of the second row's total, 4095 + e^10, 0.0001 are 2.6: its third token
        assert tokens.tolist() == [BLOCK, 2, 9]
        total = 2 * BLOCK - 1 + math.exp(10)
        assert logprobs.tolist() == pytest.approx([-math.log(2), -math.log(total), 0.0], abs=1e-5)


@tried
@precisions
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("vocabulary", [1001, 3 * BLOCK])  # the rows of the first are not aligned
def test_a_row_draws_the_same_alone_as_among_others(dtype, temperature, vocabulary):
    logits, uniform = random_logits(7, vocabulary, dtype, spread=1), spread_places(7)
    tokens, logprobs = draw_tokens(logits, uniform, temperature)
    for row in range(7):
        alone = draw_tokens(logits[row : row + 1], uniform[row : row + 1], temperature)
        copied = draw_tokens(logits[row : row + 1].clone(), uniform[row : row + 1], temperature)
        for token, logprob in (alone, copied):
            assert (token.item(), logprob.item()) == (tokens[row].item(), logprobs[row].item())


@tried
def test_rows_that_do_not_lie_together_are_read_as_they_are():
    wide = random_logits(3, 40, torch.float32)
    uniform = places(0.2, 0.5, 0.8)
    got, wanted = draw_tokens(wide[:, 3:33], uniform, 1.0), draw_tokens(wide[:, 3:33].clone(), uniform, 1.0)
    assert all(map(torch.equal, got, wanted))


@tried
def test_no_rows_give_no_tokens():
    tokens, logprobs = draw_tokens(torch.empty(0, 30, device=HERE), places(), 1.0)
    assert (tokens.shape, logprobs.shape) == ((0,), (0,))


@tried
@precisions
def test_the_trial_on_made_up_numbers_passes(dtype):
    assert drawing_problem(HERE, dtype) is None


def test_float64_is_left_to_torch():
    assert "not in torch.float64" in drawing_problem(HERE, torch.float64)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter takes any tensor")
def test_a_processor_is_left_to_torch():
    assert drawing_problem(torch.device("cpu"), torch.float32) is not None
