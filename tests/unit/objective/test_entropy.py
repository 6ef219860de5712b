"""Tokens of high entropy are those from the quantile on; the coefficient of a bonus follows its target by steps."""

import pytest
import torch

from paceline.objective.policy_loss import top_entropy_threshold
from paceline.objective.schedule import next_entropy_coef


def chosen(entropies: list[float], share: float) -> list[bool]:
    values = torch.tensor(entropies, dtype=torch.float64)
    return (values >= top_entropy_threshold(values, share=share)).tolist()


@pytest.mark.parametrize(
    ("entropies", "share", "kept"),
    [
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 0.5, [0, 0, 0, 1, 1, 1]),  # the quantile lies at 0.35
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 0.0, [0, 0, 0, 0, 0, 1]),  # the highest alone
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 1.0, [1, 1, 1, 1, 1, 1]),
        ([0.6, 0.1, 0.4, 0.2, 0.5], 0.25, [1, 0, 0, 0, 1]),  # exactly at 0.5
        ([0.7, 0.2, 0.2, 0.2], 0.5, [1, 1, 1, 1]),  # equal ones are all in
        ([0.0, 0.0, 0.0], 0.2, [1, 1, 1]),
        ([0.3], 0.2, [1]),
    ],
)
def test_the_tokens_from_the_quantile_on_are_chosen(entropies, share, kept):
    assert chosen(entropies, share) == [bool(one) for one in kept]


def test_entropies_that_differ_by_rounding_are_chosen_alike():
    # two first tokens of one prompt, computed in micro-batches of their own
    assert chosen([0.1, 0.3, 0.3 * (1 - 1e-15), 0.2], 0.34) == [False, True, True, False]


def test_the_quantile_is_torchs():
    values = torch.rand(101, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for share in (0.0, 0.2, 0.5, 0.77):
        assert top_entropy_threshold(values, share=share) == pytest.approx(float(values.quantile(1 - share)), rel=1e-7)


def test_the_coefficient_rises_below_the_target_and_falls_above_it_within_its_bounds():
    control = (0.2, 0.01, 0.05, 0.02)
    coefs, coef = [], 0.03
    for entropy in (0.1, 0.2, 0.3, 0.4, 0.5):
        coef = next_entropy_coef(coef, entropy, control=control)
        coefs.append(coef)
    assert coefs == pytest.approx([0.05, 0.05, 0.03, 0.01, 0.01])


@pytest.mark.parametrize(
    ("coef", "entropy", "following"),
    [
        (0.0, 0.1, 0.01),  # rises, but not to the least
        (0.009, 0.1, 0.01),
        (0.0095, 0.1, 0.0105),
        (2.0, 0.3, 1.0),  # falls, but not to the largest
        (2.0, 0.1, 1.0),
        (0.0, 0.3, 0.01),
    ],
)
def test_a_coefficient_from_beyond_its_bounds_is_brought_within_them(coef, entropy, following):
    control = (0.2, 0.01, 1.0, 0.001)
    assert next_entropy_coef(coef, entropy, control=control) == pytest.approx(following)
