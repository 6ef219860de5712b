"""Micro-batches of episodes: observed tokens are inputs alone, and rows of one episode are one completion."""

import math
from dataclasses import replace

import pytest
import torch

from paceline.config.objective import LossConfig
from paceline.objective.cutting import cut, even_runs, input_tokens, share_out, shortest, units
from paceline.objective.micro_batches import MicroBatch, Sample, pack, padded_attention, padded_rows
from paceline.training.learner.objective import token_losses
from tests.support.episodes import sample as make_sample


def row(prompt: str, completion: str, /, group: int = 0, **about: object) -> Sample:
    """A row whose observed tokens are the capitals."""
    places = [at for at, letter in enumerate(completion) if letter.islower()]
    starts = [at for at in places if at - 1 not in places]
    ends = [at + 1 for at in places if at + 1 not in places]
    spans = tuple(zip(starts, ends, strict=True))
    return make_sample(
        group=group,
        prompt_ids=tuple(map(ord, prompt)),
        completion_ids=tuple(map(ord, completion)),
        logprobs=tuple(-0.1 * at for at in places),
        runs=spans,
        **{"advantage": 1.0, **about},
    )


STEP = [
    row("pq", "abXYcZde", advantages=(1.0, -1.0, 0.5)),
    row("pq", "f", advantage=2.0),
    row("rs", "gXh", prompt=1, completion=1, advantage=3.0),
    row("t", "k", prompt=2, completion=1, advantage=3.0),
]


def text(ids: torch.Tensor) -> str:
    return "".join(map(chr, ids.tolist()))


def packed(*indices: int) -> MicroBatch:
    return pack(STEP, [0.1, 0.2, 0.3, 0.3], indices or range(4), dtype=torch.float64)


def test_observed_tokens_are_inputs_and_no_targets():
    batch = packed()
    assert text(batch.input_ids) == "pq" + "rs" + "t" + "abXYcZd" + "" + "gX" + ""
    assert text(batch.targets) == "abcde" + "f" + "gh" + "k"
    # c follows the observed Y, d follows Z, h follows X
    assert text(batch.input_ids[batch.sources]) == "qaYZd" + "q" + "sX" + "t"
    assert batch.position_ids[5:12].tolist() == [2, 3, 4, 5, 6, 7, 8]
    assert batch.input_lengths == (7, 0, 2, 0)
    assert batch.row_lengths == [5, 1, 2, 1]
    assert batch.weights.tolist() == [0.1] * 5 + [0.2] + [0.3] * 3
    assert batch.advantages.tolist() == [1.0, 1.0, -1.0, 0.5, 0.5, 2.0, 3.0, 3.0, 3.0]
    assert batch.rollout_logprobs.tolist() == pytest.approx([0, -0.1, -0.4, -0.6, -0.7, 0, 0, -0.2, 0])


def test_rows_of_an_episode_that_stand_together_are_one_completion():
    assert packed().lengths.tolist() == [5, 1, 3]
    assert packed(2, 0, 3).lengths.tolist() == [2, 5, 1]


def test_padded_rows_predict_sampled_tokens_from_the_ones_before_them():
    batch = packed()
    rows = padded_rows(batch)
    assert [text(batch.input_ids[i[r]]) for i, r in zip(rows.index, rows.real, strict=True)] == [
        *("pqabXYcZd", "pq", "rsgX", "t"),
    ]
    assert text(batch.input_ids[rows.index.flatten()[rows.sources]]) == text(batch.input_ids[batch.sources])


def test_a_row_may_begin_with_an_observed_token():
    step = [row("pq", "XaYb", advantage=0.0)]
    batch = pack(step, [1.0], [0], dtype=torch.float64)
    assert text(batch.input_ids[batch.sources]) == "XY"
    rows = padded_rows(batch)
    assert text(batch.input_ids[rows.index.flatten()[rows.sources]]) == "XY"


def test_sampled_tokens_see_the_observed_ones_before_them():
    batch = packed()
    layout = padded_attention(batch)
    tokens = torch.cat([layout.prompt_index[layout.prompt_of_sample], layout.completion_index], dim=1)
    assert text(batch.input_ids[tokens[0][layout.mask[0, 0, 4]]]) == "pqabXYc"
    assert text(batch.input_ids[tokens[2][layout.mask[2, 0, 1]]]) == "rsgX"


def test_a_prompt_that_no_other_row_has_is_counted_for_its_row():
    # pq once, rs and t; inputs 7 + 0 + 2 + 0
    assert input_tokens(STEP, range(4)) == len(packed().input_ids) == 2 + 2 + 1 + 9
    assert input_tokens(STEP, range(4), "padded") == packed().num_forwarded("padded") == 4 * 9
    assert shortest([make_sample(prompt_ids=(), completion_ids=(), runs=()), *STEP]) == 4


EPISODES = [row(f"p{at}", "aXb" * 2, prompt=at % 3, completion=at // 3) for at in range(6)]
"""Two episodes of three rows, each of 2 + 5 input tokens; siblings share the prompts."""


def test_rows_of_a_prompt_stay_together_where_each_token_stands_alone():
    assert cut(EPISODES, trained=range(6), micro_batch_tokens=12) == [[0, 3], [1, 4], [2, 5]]
    assert share_out(EPISODES, trained=range(6), ranks=3) == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_rows_of_an_episode_stay_together_for_a_loss_that_reads_it_whole(layout):
    # both episodes are 3 * 2 + 6 * 5 tokens packed, and 6 * 7 padded
    for tokens in (7, 12, 21, 35):
        assert cut(EPISODES, trained=range(6), micro_batch_tokens=tokens, layout=layout, whole=True) == [
            *([0, 1, 2], [3, 4, 5]),
        ]
    (all_rows,) = cut(EPISODES, trained=range(6), micro_batch_tokens=42, layout=layout, whole=True)
    assert all_rows == [0, 1, 2, 3, 4, 5]
    assert share_out(EPISODES, trained=range(6), ranks=2, layout=layout, whole=True) == [[0, 1, 2], [3, 4, 5]]
    assert share_out(EPISODES, trained=range(6), ranks=3, layout=layout, whole=True) == [[0, 1, 2], [3, 4, 5], []]
    assert units(EPISODES, [1, 2, 3], whole=True) == [[1, 2], [3]]


def test_padded_rows_of_a_run_all_cost_as_much_as_its_longest():
    # 2 rows of 5, 1 of 5, 3 of 2: together 6 * 5
    assert [list(run) for run in even_runs([5, 5, 2], limit=29, rows=[2, 1, 3])] == [[0, 1], [2]]
    assert [list(run) for run in even_runs([5, 5, 2], limit=30, rows=[2, 1, 3])] == [[0, 1, 2]]


def test_the_ratio_of_an_episode_is_the_mean_over_its_sampled_tokens_alone():
    # two rows, sampled a b (then X, observed) c and d: log ratios 0.3, 0.1, -0.2 and 0.6, mean 0.8 / 4
    step = [row("pq", "abXc", completion=0), row("r", "d", prompt=1, completion=0), row("pq", "e", advantage=-1.0)]
    batch = pack(step, [0.25, 0.25, 1.0], range(3), dtype=torch.float64)
    old = torch.tensor([-1.0, -2.0, -3.0, -0.5, -1.0], dtype=torch.float64)
    policy = old + torch.tensor([0.3, 0.1, -0.2, 0.6, 0.05], dtype=torch.float64)
    batch, entropy = replace(batch, old_logprobs=old), torch.zeros_like(old)
    losses, sums = token_losses(batch, policy, entropy, LossConfig(ratio_level="sequence", clip_eps_high=0.28))
    assert losses.tolist() == pytest.approx([-math.exp(0.2)] * 4 + [math.exp(0.05)])
    losses, sums = token_losses(batch, policy, entropy, LossConfig(ratio_level="sequence", clip_eps_high=0.2))
    assert losses.tolist()[:4] == pytest.approx([-1.2] * 4)  # e^0.2 = 1.221 is above the bound
    assert sums["clip_high"].item() == 4


@pytest.mark.parametrize(
    ("options", "reads"),
    [
        ({}, False),
        ({"bound": "cispo", "beta": 0.1, "entropy_coef": 0.1, "rollout_correction": "token_mask"}, False),
        ({"bound": "sapo"}, False),
        ({"ratio_level": "sequence"}, True),
        ({"bound": "vespo"}, True),
        ({"bound": "mine.py:loss"}, True),
        ({"rollout_correction": "sequence_mask"}, True),
        ({"off_policy_threshold": 0.1}, True),
        ({"skip_threshold": 20.0}, True),
    ],
)
def test_an_objective_says_that_it_reads_whole_completions(options, reads):
    assert LossConfig(**options).reads_whole_completions is reads
