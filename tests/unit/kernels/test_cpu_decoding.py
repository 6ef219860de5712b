"""The CPU kernels of a decoding step agree with torch's operations, whatever rows share a batch."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from paceline.engines.local.attention import NO_WEIGHTS, AttentionLayer, AttentionWeights, Rotation
from paceline.engines.local.grid import GridAttention
from paceline.engines.local.operations import rms_norm
from paceline.engines.local.tables import TableAttention, blocks_of_rows
from paceline.kernels.cpu.compiling import library
from paceline.kernels.cpu.decoding import Heads, decoding_kernels

pytestmark = pytest.mark.skipif(library().functions is None, reason=library().reason)
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}
EPS = 1e-6


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("width", [1, 8, 64, 70, 896])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_residual_sum_and_its_norm_are_those_of_torch(width, dtype):
    residual, update, scale = normal(5, width), normal(5, width, seed=1, dtype=dtype), normal(width, seed=2)
    expected_sum = residual + update.float()
    expected = rms_norm(expected_sum, scale, EPS)
    plain = decoding_kernels().add_norm(residual.clone(), None, scale, EPS, dtype)
    torch.testing.assert_close(plain, rms_norm(residual, scale, EPS).to(dtype), atol=2e-6, rtol=TOLERANCE[dtype])
    normed = decoding_kernels().add_norm(residual, update, scale, EPS, dtype)
    assert torch.equal(residual, expected_sum)
    torch.testing.assert_close(normed, expected.to(dtype), atol=2e-6, rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("width", [1, 16, 37, 1408])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_gated_activation_is_that_of_torch_in_one_tensor_or_two(width, dtype):
    joined = normal(7, 2 * width, dtype=dtype) * 4
    joined[0, :width] = -200  # silu goes to 0 there, and exp(200) is no number
    gate, up = joined.chunk(2, dim=-1)
    expected = (F.silu(gate.float()) * up.float()).to(dtype)
    for given in ((joined,), (gate.contiguous(), up.contiguous())):
        torch.testing.assert_close(decoding_kernels().silu_mul(*given), expected, atol=1e-6, rtol=TOLERANCE[dtype])


def test_rows_that_share_a_prompt_are_cut_into_blocks():
    rows, starts = blocks_of_rows(np.array([0, 1, 2, 4, 5]), np.array([7, 2, 7, 7, 2]), 2)
    assert rows.tolist() == [1, 5, 0, 2, 4]
    assert starts.tolist() == [0, 2, 4, 5]
    assert [part.tolist() for part in blocks_of_rows(np.zeros(0, int), np.zeros(0, int), 2)] == [[], [0]]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("heads", [(2, 2, 16), (4, 2, 8), (14, 2, 64), (6, 2, 24), (9, 1, 16)], ids=str)
@pytest.mark.parametrize("normed", [False, True])
def test_attention_is_that_of_torch_while_rows_come_grow_end_and_are_refilled(dtype, heads, normed):
    query, kv, width = heads
    both = Sides(Heads(query=query, kv=kv, width=width), dtype, rows=7, normed=normed)
    both.admit([5, 33], [[0, 1, 2, 3], [5]])
    both.steps(21)
    both.release([1, 5])
    both.steps(2)
    both.admit([18, 1], [[1], [4, 5, 6]])
    both.steps(60)  # past the columns there is room for at first
    both.release([0, 2, 3])
    both.compact([4, 6, 1, 5, 0], alive=4)
    both.steps(3)
    both.admit([40], [[4]], known=16)
    both.steps(3)


class Sides:
    """The two attentions over the same two layers of made-up queries, keys and values, compared at each call.

    torch's side computes in float32, so that only the kernels' rounding is seen.
    """

    def __init__(
        self, heads: Heads, dtype: torch.dtype, *, rows: int, normed: bool, sinks: bool = False, **options: Any
    ) -> None:
        """`options`: what the second layer computes otherwise than the first."""
        angles = torch.arange(200)[:, None] * 0.3 ** torch.arange(heads.width // 2)
        sine = angles.sin()
        rotation = Rotation(
            cosine=torch.cat((angles.cos(), angles.cos()), -1), sine=torch.cat((-sine, sine), -1), norm_eps=EPS
        )
        layers = [AttentionLayer(rotation=rotation), AttentionLayer(**{"rotation": rotation, **options})]
        self.table = TableAttention(rows, layers, heads, dtype=dtype, kernels=decoding_kernels())
        self.grid = GridAttention(rows, layers, heads)
        self.heads, self.dtype, self.seeds = heads, dtype, itertools.count()
        norm = normal(heads.query + heads.kv, heads.width, seed=99).abs() if normed else None
        self.weights = AttentionWeights(norm=norm, sinks=normal(heads.query, seed=98) if sinks else None)
        self.living = np.zeros(rows, dtype=bool)

    def made_up(self, *shape: int) -> torch.Tensor:
        return normal(*shape, self.heads.query + 2 * self.heads.kv, self.heads.width, seed=next(self.seeds)).to(
            self.dtype
        )

    def agree(self, left: torch.Tensor, right: torch.Tensor) -> None:
        torch.testing.assert_close(left.float(), right, atol=4 * TOLERANCE[self.dtype], rtol=4 * TOLERANCE[self.dtype])

    def admit(self, lengths: list[int], rows: list[list[int]], known: int = 0) -> None:
        slots = self.table.take_slots(lengths, rows), self.grid.take_slots(lengths, rows)
        padded = -(-max(lengths) // 8) * 8
        for layer in range(2):
            qkv = self.made_up(len(lengths) + 1, max(16, padded)).flatten(2)  # one prompt that is padding alone
            exact = qkv.float().clone()  # queries and keys are rotated in place
            left = self.table.of_prompts(qkv, layer, self.weights, slots[0], known)
            right = self.grid.of_prompts(exact, layer, self.weights, slots[1], 0)[:, known:]
            for index, length in enumerate(lengths):
                self.agree(left[index, : length - known], right[index, : length - known])
        for members in rows:
            self.living[members] = True

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.table.begin_step()
            self.grid.begin_step()
            for layer in range(2):
                qkv = self.made_up(len(self.living)).flatten(1)
                living = torch.from_numpy(self.living)
                left = self.table.of_step(qkv, layer, self.weights)
                self.agree(left[living], self.grid.of_step(qkv.float(), layer, self.weights)[living])
                assert (left[~living] == 0).all()
            self.table.end_step()
            self.grid.end_step()

    def move(self, rows: list[int], to: list[int]) -> None:
        contexts = self.table.park(rows), self.grid.park(rows)
        self.release(rows)
        self.table.resume(contexts[0], to)
        self.grid.resume(contexts[1], to)
        self.living[to] = True

    def release(self, rows: list[int]) -> None:
        self.table.release(rows)
        self.grid.release(rows)
        self.living[rows] = False

    def compact(self, keep: list[int], *, alive: int) -> None:
        self.table.compact(torch.tensor(keep), alive)
        self.grid.compact(torch.tensor(keep), alive)
        self.living = np.arange(len(keep)) < alive


PARTLY = Rotation(cosine=normal(200, 8, seed=7), sine=normal(200, 8, seed=8), norm_eps=EPS)


@pytest.mark.parametrize(
    "options",
    [
        {"window": 5},
        {"window": 16},  # whole vectors
        {"window": 20, "sinks": True, "cap": 2.0},
        {"sinks": True},
        {"cap": 1.5, "scaling": 0.4},
        {"rotation": PARTLY, "window": 9},
        {"rotation": Rotation(cosine=torch.zeros(200, 0), sine=torch.zeros(200, 0), norm_eps=EPS)},
        {"normed": True, "joint_norms": True, "query_scales": torch.arange(200) / 100 + 0.5},
    ],
    ids=lambda options: ", ".join(options),
)
def test_layers_with_options_attend_as_the_masked_grid_does(options):
    # completions of 16, 17, 32 tokens and more: a window's columns are full and overwritten
    sides = Sides(Heads(query=4, kv=2, width=16), torch.float32, rows=4, **{"normed": False, **options})
    sides.admit([13, 3], [[0, 2], [1]])
    sides.steps(21)
    sides.move([2, 0], [0, 3])
    sides.steps(20)
    sides.admit([37], [[2]], known=16)
    sides.steps(18)
    sides.compact([3, 1, 2, 1], alive=3)
    sides.steps(10)


def test_a_row_attends_to_the_same_bits_whatever_its_neighbours_and_threads():
    heads, threads = Heads(query=4, kv=2, width=16), torch.get_num_threads()
    kernels, qkv, prompt = decoding_kernels(), normal(9, 8 * 16), normal(1, 16, 8 * 16, seed=1)
    rotation = Rotation(cosine=torch.ones(64, 16), sine=torch.zeros(64, 16), norm_eps=EPS)
    alone, among = (
        TableAttention(n, [AttentionLayer(rotation=rotation)], heads, dtype=torch.float32, kernels=kernels)
        for n in (1, 9)
    )
    for attention, rows in ((alone, [[0]]), (among, [list(range(9))])):
        attention.of_prompts(prompt.clone(), 0, NO_WEIGHTS, attention.take_slots([13], rows), 0)
        attention.begin_step()
    expected = alone.of_step(qkv[4:5], 0, NO_WEIGHTS)
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            assert torch.equal(among.of_step(qkv, 0, NO_WEIGHTS)[4], expected[0])
    finally:
        torch.set_num_threads(threads)
