"""What is computed for each micro-batch asks the device for no number: the host would wait for all given to it."""

from dataclasses import replace

import pytest
import torch

from paceline.config.objective import LossConfig
from paceline.objective.micro_batches import pack
from paceline.training.learner.objective import token_losses
from paceline.training.learner.stats import read_sums
from tests.support.episodes import sample as make_sample
from tests.support.recording import record_operations

EVERY_TERM = {
    "rollout_correction": "sequence_mask",
    "off_policy_threshold": 0.5,
    "skip_threshold": 3.0,
    "beta": 0.1,
    "entropy_coef": 0.01,
}


def batch():
    samples = [
        make_sample(
            group=0,
            prompt_ids=(1, 2),
            completion_ids=(3,) * count,
            logprobs=(-1.0,) * count,
            advantage=advantage,
        )
        for count, advantage in ((2, 1.0), (5, -1.0), (1, 0.5))
    ]
    return pack(samples, [0.1] * 3, range(3), dtype=torch.float32)


@pytest.mark.parametrize("bound", ["clip", "cispo", "sapo", "none"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("terms", [{}, EVERY_TERM], ids=["plain", "every term"])
def test_the_loss_of_a_micro_batch_asks_the_device_for_nothing(bound, level, terms):
    part = batch()
    policy, old, reference = (torch.linspace(start, -1.0, part.num_targets) for start in (-2.0, -2.1, -1.9))
    part = replace(part, old_logprobs=old, ref_logprobs=reference if terms else None)
    loss = LossConfig(bound=bound, ratio_level=level, **terms)
    _, recorded = record_operations(lambda: (token_losses(part, policy, -policy, loss)[0],))
    assert torch.equal(recorded[0], token_losses(part, policy, -policy, loss)[0])


def test_an_updates_numbers_are_read_at_once_whatever_their_types():
    parts = [
        {"loss": torch.tensor(0.5), "held": torch.tensor(3), "mismatch_max": torch.tensor(0.25)},
        {"loss": torch.tensor(1.0), "held": torch.tensor(4), "mismatch_max": torch.tensor(0.75)},
    ]
    read = read_sums(parts, torch.tensor(2.0))
    assert read == {"loss": 1.5, "held": 7.0, "mismatch_max": 0.75, "grad_norm": 2.0}
