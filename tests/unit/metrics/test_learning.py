"""Whether a run is called learning: by hand, on runs that were recorded, and on noise that learns nothing."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from paceline.metrics.learning import Learning, Verdict, accuracy_shift, judge, reward_shift
from scripts.learning_error_rates import ever_risen

RECORDED = Path(__file__).parents[2] / "golden" / "learning"
"""Columns of `metrics.jsonl` and `evals.jsonl` of the runs of `make demo`, written by scripts/record_learning.py."""


def step(number: int, reward: float | None, **changes: object) -> dict:
    sound = {"learning_rate": 1e-5, "updates": 1, "grad_norm": 0.2, "prompts": 8, "groups_zero_deviation": 2}
    return {"step": number, "reward_mean": reward, **sound, "alarms": [], **changes}


def steps(*rewards: float | None, **changes: object) -> list[dict]:
    return [step(number, reward, **changes) for number, reward in enumerate(rewards, start=1)]


def evaluation(number: int, accuracy: float, half: float = 0.03, name: str = "test") -> dict:
    return {"set": name, "step": number, "accuracy": accuracy, "ci_low": accuracy - half, "ci_high": accuracy + half}


def recorded(name: str) -> tuple[list[dict], list[dict]]:
    """The records of a run of `make demo`, as far as the rules read them."""
    found = json.loads((RECORDED / f"{name}.json").read_text())
    steps, evals = ([dict(zip(part, row, strict=True)) for row in zip(*part.values(), strict=True)] for part in found)
    return steps, evals


def verdicts(steps: list[dict], evals: list[dict]) -> list[Verdict]:
    """What is said after every step, as the terminal shows it."""
    learning, said = Learning(), []
    waiting = [one for one in evals if one["step"] > 0]
    for one in (one for one in evals if one["step"] == 0):
        learning.evaluation(one)
    for record in steps:
        learning.step(record)
        while waiting and waiting[0]["step"] == record["step"]:
            learning.evaluation(waiting.pop(0))
        said.append(learning.verdict())
    return said


def test_a_reward_has_risen_where_its_last_steps_are_five_standard_errors_above_its_first():
    # 6 steps at either end, each half 0.0 and half 0.2: sample variance 0.012, error sqrt(0.024 / 6) = 0.06325
    first, middle = [0.0, 0.2] * 3, [0.5] * 6
    for lift, direction in ((0.31, 0), (0.32, 1), (-0.31, 0), (-0.32, -1)):
        shift = reward_shift([*first, *middle, *(value + lift for value in first)])
        assert shift is not None
        assert (shift.before, shift.now) == (pytest.approx(0.1), pytest.approx(0.1 + lift))
        assert shift.error == pytest.approx(0.0632456, abs=1e-7)
        assert shift.direction == direction


def test_windows_are_a_third_of_the_run_from_6_steps_to_50():
    assert reward_shift([0.0] * 17) is None
    shift = reward_shift([1.0] * 50 + [0.0] * 900 + [3.0] * 50)
    assert shift is not None
    assert (shift.before, shift.now, shift.error) == (1.0, 3.0, 0.0)


def test_later_looks_at_held_out_tasks_must_see_more():
    # half-widths of 0.03 are errors of 0.01531 each, 0.02165 together; look j has the chance 0.05 / (j (j + 1))
    found = [
        accuracy_shift([evaluation(0, 0.5)] + [evaluation(n, 0.6) for n in range(1, j + 1)], sets=1) for j in (1, 9)
    ]
    assert [round(shift.error, 5) for shift in found if shift] == [0.02165, 0.02165]
    assert [round(shift.limit, 3) for shift in found if shift] == [2.241, 3.452]  # of 0.025, of 0.05 / 90
    assert [shift.direction for shift in found if shift] == [1, 1]
    assert accuracy_shift([evaluation(0, 0.5)], sets=1) is None


def test_what_could_not_change_the_policy_is_no_learning_whatever_its_rewards_did():
    rising = [number / 40 for number in range(40)]
    evals = [evaluation(0, 0.2), evaluation(40, 0.9)]
    assert judge(steps(*rising, learning_rate=0.0), evals).describe() == (
        "learning: no, because the learning rate is 0, in all 40 steps so far"
    )
    assert judge(steps(*rising, grad_norm=0.0), evals).word == "no"
    assert judge(steps(*rising, updates=0, groups_zero_deviation=8, grad_norm=None), []).because == (
        "the completions of each prompt have equal rewards, in all 40 steps so far"
    )


def test_held_out_accuracy_decides_before_the_reward_and_both_are_said():
    flat, rising = steps(*[0.5, 0.52] * 20), steps(*[number / 40 for number in range(40)])
    better, worse, same = (evaluation(40, value) for value in (0.7, 0.3, 0.52))
    first = evaluation(0, 0.5)
    assert judge(flat, [first, better]).describe() == (
        "learning: yes, because held-out accuracy rose from 50.0 % to 70.0 % (test)"
    )
    assert judge(rising, [first, worse]).describe() == (
        "learning: no, because held-out accuracy fell from 50.0 % to 30.0 % (test); "
        "but the reward rose from 0.150 to 0.825"
    )
    assert judge(rising, [first, same]).describe() == (
        "learning: yes, because the reward rose from 0.150 to 0.825; "
        "but held-out accuracy went from 50.0 % to 52.0 %, where less than 4.9 % may be chance (test)"
    )
    assert judge(list(reversed(rising)), []).because == "the reward fell from 0.825 to 0.150"


def test_a_reward_that_breaks_down_late_is_no_longer_called_learnt():
    good = [0.1, 0.12] * 100 + [0.8, 0.82] * 400
    assert judge(steps(*good), []).word == "yes"
    assert judge(steps(*good, *[0.1, 0.12] * 25), []).word == "no"


def test_too_early_until_18_rewards_and_no_only_from_30_steps_on():
    flat = [0.5, 0.52] * 20
    words = [judge(steps(*flat[:count]), []).describe() for count in (0, 1, 17, 18, 30)]
    unmoved = "the reward went from 0.510 to 0.510, where less than"
    assert words == [
        "learning: too early, because 0 of the 18 steps needed have a reward so far",
        "learning: too early, because 1 of the 18 steps needed have a reward so far",
        "learning: too early, because 17 of the 18 steps needed have a reward so far",
        f"learning: too early, because {unmoved} 0.032 may be chance",
        f"learning: no, because {unmoved} 0.024 may be chance",
    ]


def test_a_standstill_of_5_steps_is_the_reason_where_nothing_was_learnt_and_a_remark_where_something_was():
    equal = {"updates": 0, "grad_norm": None, "groups_zero_deviation": 8}
    still = [step(number, 1.0, **equal) for number in range(41, 46)]
    assert judge([*steps(*[0.5, 0.52] * 20), *still], []).because == (
        "the completions of each prompt have equal rewards, in the last 5 steps"
    )
    learnt = judge([*steps(*[number / 40 for number in range(40)]), *still], [])
    assert learnt.word == "yes"
    assert learnt.but == ("the completions of each prompt have equal rewards, in the last 5 steps",)


def test_alarms_that_ring_are_said_beside_the_word():
    active = steps(*[number / 40 for number in range(40)], alarms=["clip_fraction"])
    assert judge(active, []).but == ("alarm clip_fraction: the clip holds more than 30 % of the trained tokens",)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_demo_is_called_learning_from_step_26_at_the_latest_and_never_otherwise_again(seed):
    said = [one.word for one in verdicts(*recorded(f"seed-{seed}"))]
    assert set(said[:17]) == {"too early"}
    assert set(said[25:]) == {"yes"}


@pytest.mark.parametrize("control", ["learning-rate-0", "random-reward"])
def test_no_control_of_the_demo_is_called_learning_after_any_step(control):
    said = [one.word for one in verdicts(*recorded(control))]
    assert "yes" not in said
    assert said[-1] == "no"


def test_noise_is_hardly_ever_called_learning_though_it_is_looked_at_after_every_step():
    """400 runs of 100 steps whose rewards are of 8 prompts with 4 right or wrong completions each, some prompts harder
    than others; docs/watching.md has the rates of scripts/learning_error_rates.py, of 20,000 runs and other noise."""
    draw = random.Random(0)
    wrongly = 0
    for _ in range(400):
        rewards = list[float]()
        for _ in range(100):
            chances = [draw.choice((0.05, 0.3, 0.8)) for _ in range(8)]
            rewards.append(sum(draw.random() < chance for chance in chances for _ in range(4)) / 32)
        shifts = (reward_shift(rewards[:count]) for count in range(18, 101))
        wrongly += any(shift is not None and shift.direction > 0 for shift in shifts)
    assert wrongly <= 2


def test_the_rates_of_the_documents_are_of_the_same_rule():
    noise = np.random.default_rng(1).normal(size=(40, 100)) + np.linspace(0, 1, 40)[:, None] * np.linspace(0, 5, 100)
    shifts = [[reward_shift(run[:count]) for count in range(18, 101)] for run in noise.tolist()]
    risen = [any(shift is not None and shift.direction > 0 for shift in run) for run in shifts]
    assert ever_risen(noise).tolist() == risen
    assert 0 < sum(risen) < 40
