"""Every preset against its source written again: the same loss and the same gradient by the logits, to 1e-12."""

import pytest
import torch

from paceline.config.presets import PRESETS
from tests.reference.papers import PAPERS, places, ratio
from tests.reference.steps import paceline_loss, preset_options, random_step, token_entropies, token_logprobs

SEEDS = range(4)


def test_every_preset_has_its_source_written_again():
    assert set(PAPERS) == set(PRESETS)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("preset", PRESETS)
def test_loss_and_gradient_are_those_of_the_source(preset, seed):
    step, logits = random_step(seed)
    logprobs = token_logprobs(logits, step.tokens)
    wanted = PAPERS[preset](step, logprobs)
    (wanted_gradient,) = torch.autograd.grad(wanted, logits, retain_graph=True)
    got = paceline_loss(step, logprobs, token_entropies(logits), *preset_options(preset))
    (gradient,) = torch.autograd.grad(got, logits)
    assert got.item() == pytest.approx(wanted.item(), abs=1e-12)
    assert wanted_gradient.norm() > 1e-3
    assert float((gradient - wanted_gradient).abs().max()) <= 1e-12


def test_the_steps_reach_beyond_both_bounds_with_both_signs_of_advantage():
    seen = set()
    for seed in SEEDS:
        step, logits = random_step(seed)
        logprobs = token_logprobs(logits, step.tokens)
        for row, t in places(step, range(7)):
            r = ratio(step, logprobs, row, t).item()
            side = "low" if r < 0.8 else "high" if r > 1.28 else "inside"
            seen.add((side, step.rewards[row]))
    assert seen == {(side, reward) for side in ("low", "high", "inside") for reward in (0.0, 1.0)}
