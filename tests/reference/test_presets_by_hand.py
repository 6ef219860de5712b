"""Every preset on seven short completions, from rewards to loss, against numbers worked out by hand.

    row  group  reward  ratio to old   logprob   log ratio to reference
    a    1      0       0.5   1.0      -1  -2     0.1   0.2
    b    1      1       1.5            -2         0.2
    c    2      0       6.0   1.1      -1  -2    -0.1   0.3
    d    2      0       0.9            -1         0.0
    e    2      1       0.5   1.25     -1  -2     0.1  -0.2
    f    3      1       1.5            -1         0.1
    g    3      1       0.5   1.0      -1  -1     0.0   0.2

11 tokens, the longest completion allowed has 2. Group 1 has mean 1/2 and std sqrt(1/2) = 0.7071068; group 2 has
mean 1/3 and std sqrt(1/3) = 0.5773503; group 3 is all right. So GRPO's advantages are, 1e-4 added below,

    h = 0.5 / 0.7072068 = 0.7070068     a -h, b +h
    q = (1/3) / 0.5774503 = 0.5772503   c -q, d -q, e +2q, f 0, g 0

The penalty per token, ratio * (log ratio to reference)^2 / 2:

    a 0.0025 0.02 | b 0.03 | c 0.03 0.0495 | d 0 | e 0.0025 0.025 | f 0.0075 | g 0 0.02     sum 0.187
    means         a 0.01125 | b 0.03 | c 0.03975 | d 0 | e 0.01375 | f 0.0075 | g 0.01      sum 0.11225
"""

import math

import pytest
import torch
from torch import Tensor

from paceline.config.presets import PRESETS
from tests.reference.steps import NAN, Step, paceline_loss, preset_options

LENGTHS = (2, 1, 2, 1, 2, 1, 2)


def table(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor([row + (NAN,) * (2 - len(row)) for row in rows], dtype=torch.float64)


LOGPROBS = table((-1, -2), (-2,), (-1, -2), (-1,), (-1, -2), (-1,), (-1, -1))
RATIOS = table((0.5, 1.0), (1.5,), (6.0, 1.1), (0.9,), (0.5, 1.25), (1.5,), (0.5, 1.0))
DELTAS = table((0.1, 0.2), (0.2,), (-0.1, 0.3), (0.0,), (0.1, -0.2), (0.1,), (0.0, 0.2))
STEP = Step(
    groups=((0, 1), (2, 3, 4), (5, 6)),
    rewards=(0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0),
    lengths=LENGTHS,
    tokens=torch.zeros(7, 2, dtype=torch.int64),
    old=LOGPROBS - RATIOS.log(),
    rollout=LOGPROBS,
    reference=LOGPROBS - DELTAS,
    max_length=2,
)

LOSSES = {
    # clip(0.8, 1.2), mean over tokens, then over 7 completions:
    # a 0.9 h, b -1.2 h, c 3.55 q, d 0.9 q, e -0.85 * 2q, and 0.04 * 0.11225
    # (-0.3 h + 2.75 q + 0.00449) / 7
    "grpo": 0.197118035614,
    # the same tokens without penalty, over 11: (1.8 - 1.2) h + (7.1 + 0.9 - 2 * 1.7) q = 0.6 h + 4.6 q
    "bnpo": 0.279959581375,
    # no group 3; two tokens cost a reward of 1, so rewards a -1, b 1 | c -1, d 0, e 0;
    # standard deviations sqrt(2) and sqrt(1/3): a -0.7070568, b 0.7070568 | c -2q, d q, e q; clip(0.8, 1.28), 8 tokens:
    # (0.7070568 * (1.8 - 1.28) + (2 * 7.1 - 0.9 - 0.5 - 1.25) q) / 8
    "dapo": 0.879363792152,
    # advantages a -1/2, b 1/2, c d -1/3, e 2/3; over 7 completions of 2 tokens at most:
    # (0.6 / 2 + 8 / 3 - 1.7 * 2 / 3) / 14 = (0.3 + 4.6 / 3) / 14
    "dr_grpo": 0.130952380952,
    # ratios a sqrt(0.5) held at 0.9997, b 1.5 held at 1.0004, c sqrt(6.6), d 0.9 held at 0.9997, e sqrt(0.625):
    # (-0.0007 h + (2.5690465 + 0.9997 - 2 * 0.7905694) q) / 7
    "gspo": 0.163836028750,
    # -min(ratio, 5) * A * logprob: a -(0.5 + 2) h, b 3 h, c -(5 + 2.2) q, d -0.9 q, e (0.5 + 2.5) * 2q
    # (0.5 h - 2.1 q) / 11
    "cispo": -0.078065654909,
    # against the others: a -1, b 1, c d -1/2, e 1, nothing held:
    # (1.5 - 1.5 + (7.1 + 0.9) / 2 - 1.75 + 0.05 * 0.187) / 14
    "rloo": 0.161382142857,
    # centred -1/2, 1/2, -1/3, -1/3, 2/3, 0, 0: standard deviation sqrt((1/2 + 2/3) / 6) = 0.4409586
    # ((0.3 + 4.6 / 3) / 0.4410586 + 0.01 * 0.187) / 11
    "reinforce_pp": 0.378048778157,
    # no group 3: standard deviation sqrt((1/2 + 2/3) / 4) = 0.5400617; group 1 has 3 tokens, group 2 has 5:
    # group 1 (3 - 2.5) / 2 / 3, group 2 (-8.1 / 3 + 3 * 2 / 3) / 5, mean of both / 0.5401617
    # (0.0833333 - 0.14) / 2 / 0.5401617
    "scalerl": -0.052453426500,
}


@pytest.mark.parametrize("preset", PRESETS)
def test_the_loss_is_the_number_worked_out_by_hand(preset):
    entropies = torch.full_like(LOGPROBS, NAN)  # no preset reads them
    got = paceline_loss(STEP, LOGPROBS, entropies, *preset_options(preset))
    assert got.item() == pytest.approx(LOSSES[preset], abs=1e-11)


def test_the_table_bites_on_both_sides_of_the_bounds_for_both_signs_of_advantage():
    good = torch.tensor([STEP.rewards])[0] == 1
    assert (RATIOS[good] > 1.28).any()
    assert (RATIOS[good] < 0.8).any()
    assert (RATIOS[~good] > 1.28).any()
    assert (RATIOS[~good] < 0.8).any()
    assert math.isclose(float((RATIOS * DELTAS**2 / 2).nansum()), 0.187)
