"""The CPU attention kernel is a softmax over each sequence's own keys, bit for bit with any number of threads."""

import pytest
import torch
from torch import Tensor

from paceline.kernels.cpu.attention import SequenceTable, attention_serves, packed_attention, sequence_table
from paceline.kernels.cpu.compiling import library

pytestmark = pytest.mark.skipif(library().functions is None, reason=library().reason)

PROMPTS, PROMPT_OF_SAMPLE, INPUTS = (7, 33, 1), (0, 0, 1, 2, 1, 1), (5, 0, 70, 3, 31, 12)
TOKENS = sum(PROMPTS) + sum(INPUTS)
TABLE = sequence_table(PROMPTS, PROMPT_OF_SAMPLE, INPUTS)


def turned(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Llama's rotary embedding, as it is written down."""
    low, high = x.chunk(2, dim=-1)
    return x * cosines[:, None] + torch.cat([-high, low], dim=-1) * sines[:, None]


def plain(query: Tensor, key: Tensor, value: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """One sequence after another, softmax over a full matrix of scores."""
    query, key = turned(query, cosines, sines), turned(key, cosines, sines)
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    ends = torch.tensor(PROMPTS + INPUTS).cumsum(0).tolist()
    spans = [range(end - length, end) for end, length in zip(ends, PROMPTS + INPUTS, strict=True)]
    before = [range(0)] * len(PROMPTS) + [spans[prompt] for prompt in PROMPT_OF_SAMPLE]
    outputs = []
    for own, prompt in zip(spans, before, strict=True):
        keys = [*prompt, *own]
        scores = torch.einsum("qhd,khd->hqk", query[own], key[keys]) / query.shape[-1] ** 0.5
        hidden = torch.ones(len(own), len(keys), dtype=torch.bool).triu(len(prompt) + 1)
        probabilities = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", probabilities, value[keys]))
    return torch.cat(outputs)


def random_states(heads: int, kv_heads: int, width: int) -> list[Tensor]:
    """Query, key, value, cosines, sines and an outer gradient; the halves of the angles differ, as nothing forbids."""
    generator = torch.Generator().manual_seed(heads)
    shapes = (
        [(TOKENS, n, width) for n in (heads, kv_heads, kv_heads)] + [(TOKENS, width)] * 2 + [(TOKENS, heads, width)]
    )
    return [torch.randn(shape, generator=generator) for shape in shapes]


def results(function, states: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Output and gradients by query, key and value."""
    *inputs, cosines, sines, outside = states
    inputs = [x.to(dtype).requires_grad_() for x in inputs]
    output = function(*inputs, cosines, sines)
    return [output.detach(), *torch.autograd.grad((output * outside.to(dtype)).sum(), inputs)]


def by_kernel(query: Tensor, key: Tensor, value: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    return packed_attention(query, key, value, TABLE, scale=query.shape[-1] ** -0.5, rotation=(cosines, sines))


@pytest.mark.parametrize("shape", [(8, 2, 64), (4, 4, 16), (14, 2, 64), (4, 2, 48), (2, 1, 128)], ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)], ids=str)
def test_attention_over_ragged_sequences_is_a_softmax_over_each_ones_keys(shape, dtype, tolerance):
    states = random_states(*shape)
    exact = results(lambda *inputs: plain(*(x.double() for x in inputs)), [x.double() for x in states], torch.float64)
    for got, wanted in zip(results(by_kernel, states, dtype), exact, strict=True):
        assert got.dtype == dtype
        assert (got.double() - wanted).norm() <= tolerance * wanted.norm()


def test_turned_queries_and_keys_need_no_rotation():
    query, key, value, cosines, sines, _ = random_states(4, 2, 32)
    got = packed_attention(turned(query, cosines, sines), turned(key, cosines, sines), value, TABLE, scale=32**-0.5)
    assert torch.allclose(got, by_kernel(query, key, value, cosines, sines), atol=1e-5)


def test_the_number_of_threads_changes_no_bit():
    before, states, runs = torch.get_num_threads(), random_states(8, 2, 32), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            runs.append(results(by_kernel, states, torch.float32))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, first) for run in runs[1:] for one, first in zip(run, runs[0], strict=True))


def test_large_scores_neither_overflow_nor_lose_the_largest():
    query, key, value, cosines, sines, _ = random_states(2, 1, 16)
    got = by_kernel(query * 1e4, key, value, cosines, sines)
    wanted = plain(*(x.double() for x in (query * 1e4, key, value, cosines, sines)))
    assert got.isfinite().all()
    assert (got - wanted).abs().median() < 1e-5


def test_the_table_puts_costly_sequences_first_and_leaves_empty_ones_out():
    table = sequence_table((2, 1), (0, 0, 1), (3, 0, 1))
    # first token, tokens, prompt's first token, prompt's tokens, start of the shares
    assert table.rows.tolist() == [[3, 3, 0, 2, 0], [0, 2, 0, 0, 2], [6, 1, 2, 1, 4], [2, 1, 0, 0, 5]]
    assert isinstance(table, SequenceTable)
    assert (table.shares, table.longest, table.window) == (6, 5, 5)


def test_with_a_window_the_table_gives_a_completion_the_end_of_its_prompt():
    table = sequence_table((5, 1), (0, 1), (3, 2), window=4)
    assert table.rows.tolist() == [[6, 3, 2, 3, 0], [0, 5, 0, 0, 3], [9, 2, 5, 1, 8], [5, 1, 0, 0, 9]]
    assert (table.shares, table.longest, table.window) == (10, 6, 4)
    alone = sequence_table((5,), (0,), (3,), window=1)  # a token sees itself alone
    assert sorted(alone.rows.tolist()) == [[0, 5, 0, 0, 0], [5, 3, 5, 0, 5]]


def test_other_precisions_and_odd_widths_are_not_served():
    cpu = torch.device("cpu")
    assert attention_serves(cpu, torch.float32, 64)
    assert not attention_serves(cpu, torch.float64, 64)
    assert not attention_serves(cpu, torch.float32, 24)
    assert not attention_serves(cpu, torch.float32, 528)
    assert not attention_serves(torch.device("meta"), torch.float32, 64)
