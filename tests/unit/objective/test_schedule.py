"""The learning rate follows warm-up and decay as worked out by hand."""

import pytest
import torch
from transformers import get_scheduler

from paceline.objective.schedule import learning_rate

LINEAR = {"peak": 1.0, "schedule": "linear", "warmup_steps": 2, "total_steps": 5, "min_ratio": 0.2}


def test_the_rate_rises_in_equal_parts_and_reaches_the_peak_at_the_end_of_the_warm_up():
    assert [learning_rate(step, **LINEAR) for step in (1, 2)] == [0.5, 1.0]


def test_the_rise_is_one_update_ahead_of_that_of_transformers():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=4, num_training_steps=9)
    theirs = []
    for _ in range(5):
        theirs.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    ours = [learning_rate(step, **LINEAR | {"warmup_steps": 4, "total_steps": 9}) for step in (1, 2, 3, 4)]
    assert theirs == [0.0, *ours]


def test_a_line_falls_to_the_smallest_share_one_step_after_the_last_and_stays_there():
    assert [learning_rate(step, **LINEAR) for step in (3, 4, 5, 6, 9)] == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.2])


def test_half_a_cosine_is_half_way_down_in_the_middle():
    cosine = LINEAR | {"schedule": "cosine"}
    assert [learning_rate(step, **cosine) for step in (2, 4, 6)] == pytest.approx([1.0, 0.6, 0.2])


def test_a_constant_rate_stays_at_its_peak():
    constant = LINEAR | {"schedule": "constant", "warmup_steps": 0}
    assert {learning_rate(step, **constant) for step in range(1, 8)} == {1.0}


def test_no_step_is_taken_at_a_rate_of_zero():
    for schedule in ("linear", "cosine"):
        to_zero = LINEAR | {"schedule": schedule, "min_ratio": 0.0}
        assert learning_rate(5, **to_zero) > 0 == learning_rate(6, **to_zero)


def test_a_run_of_one_step_uses_the_peak():
    assert learning_rate(1, **LINEAR | {"warmup_steps": 0, "total_steps": 1}) == 1.0
