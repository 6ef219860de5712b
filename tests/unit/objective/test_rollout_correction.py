"""Weights and masks for rollouts of another policy, on sequences small enough to work out by hand."""

import math

import pytest
import torch
from torch import Tensor

from paceline.objective.policy_loss import (
    each_token,
    off_policy_sequences,
    rollout_weights,
    runaway_sequences,
    sequence_means,
    sequence_sums,
)

LENGTHS = torch.tensor([2, 1, 3])


def logs(*ratios: float) -> Tensor:
    return torch.tensor([math.log(ratio) for ratio in ratios], dtype=torch.float64)


def test_sums_and_means_keep_sequences_apart():
    values = torch.tensor([1.0, 2.0, 10.0, 3.0, 4.0, 5.0])
    assert sequence_sums(values, LENGTHS).tolist() == [3.0, 10.0, 12.0]
    assert sequence_means(values, LENGTHS).tolist() == [1.5, 10.0, 4.0]
    assert each_token(torch.tensor([7.0, 8.0, 9.0]), LENGTHS, num_tokens=6).tolist() == [7, 7, 8, 9, 9, 9]


@pytest.mark.parametrize(
    ("kind", "level", "weights"),
    [
        # tokens 0.5 3 | 2 | 1 1.5 4, where 2 is a hair below the bound
        ("truncate", "token", [0.5, 2, 2, 1, 1.5, 2]),
        ("mask", "token", [0.5, 0, 2, 1, 1.5, 0]),
        # products 1.5 | 2 | 6
        ("truncate", "sequence", [1.5, 1.5, 2, 2, 2, 2]),
        ("mask", "sequence", [1.5, 1.5, 2, 0, 0, 0]),
    ],
)
def test_rollout_weights_are_held_or_masked_by_token_or_by_sequence(kind, level, weights):
    old = logs(0.5, 3, 2 - 1e-12, 1, 1.5, 4).requires_grad_()
    got = rollout_weights(old, torch.zeros(6), LENGTHS, mode=f"{level}_{kind}", bounds=(0.0, 2.0))
    assert got.tolist() == pytest.approx(weights)
    assert not got.requires_grad


def test_a_lower_bound_holds_or_masks_small_weights():
    # 0.5 3 | 2 | 1 1.5 4 between 0.75 and 2
    old = logs(0.5, 3, 2 - 1e-12, 1, 1.5, 4)
    held = rollout_weights(old, torch.zeros(6), LENGTHS, mode="token_truncate", bounds=(0.75, 2.0))
    masked = rollout_weights(old, torch.zeros(6), LENGTHS, mode="token_mask", bounds=(0.75, 2.0))
    assert held.tolist() == pytest.approx([0.75, 2, 2, 1, 1.5, 2])
    assert masked.tolist() == pytest.approx([0, 0, 2, 1, 1.5, 0])


def test_a_product_that_overflows_is_held_or_masked_and_never_infinite():
    old, rollout, lengths = torch.zeros(3), torch.full((3,), -60.0), torch.tensor([3])
    held = rollout_weights(old, rollout, lengths, mode="sequence_truncate", bounds=(0.0, 2.0))
    masked = rollout_weights(old, rollout, lengths, mode="sequence_mask", bounds=(0.0, 2.0))
    assert (held.tolist(), masked.tolist()) == ([2.0] * 3, [0.0] * 3)


@pytest.mark.parametrize(
    ("drift", "advantage", "dropped"),
    [
        ([1.2, 0.0], -1.0, True),  # mean 0.6 above 0.5, and a bad sequence
        ([1.2, 0.0], 1.0, False),  # good sequences stay
        ([1.2, 0.0], 0.0, False),
        ([1.2, -0.4], -1.0, False),  # mean 0.4
        ([-5.0, -5.0], -1.0, False),  # likelier than when it was drawn
        ([1.0, 0.0], -1.0, False),  # exactly at the threshold
    ],
)
def test_bad_sequences_are_dropped_when_the_policy_drifted_from_them(drift, advantage, dropped):
    rollout = torch.full((2,), -1.0)
    policy = rollout - torch.tensor(drift)
    advantages = torch.full((2,), advantage)
    got = off_policy_sequences(policy, rollout, advantages, torch.tensor([2]), threshold=0.5)
    assert got.tolist() == [dropped] * 2


def test_the_off_policy_mask_judges_each_sequence_by_its_own_tokens():
    drift = torch.tensor([3.0, -1.0, 0.2, 0.0, 0.0, 3.0])
    got = off_policy_sequences(-drift, torch.zeros(6), torch.full((6,), -1.0), LENGTHS, threshold=0.5)
    assert got.tolist() == [True, True, False, True, True, True]


def test_a_runaway_sequence_is_skipped_and_its_neighbours_are_not():
    policy = logs(30, 12, 19, 1, 1, 1)  # means 21 | 19 | 1
    got = runaway_sequences(policy, torch.zeros(6), LENGTHS, threshold=20.0)
    assert got.tolist() == [True, True, False, False, False, False]
