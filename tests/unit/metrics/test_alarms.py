"""When an alarm is active, since when, and that it is told once when it begins and once when it is over."""

import pytest

from paceline.metrics.alarms import RULES, WINDOW, AlarmState
from paceline.metrics.definitions import METRICS

SOUND = {
    "entropy": 0.4,
    "completion_length_mean": 100.0,
    "truncated_fraction": 0.1,
    "prompts": 10,
    "rollouts": 100,
    "groups_zero_deviation": 3,
    "groups_no_reward": 0,
    "groups_filtered": 2,
    "clip_low_fraction": 0.1,
    "clip_high_fraction": 0.1,
    "logprob_mismatch_mean": 0.02,
    "rewards": {"accuracy": {"failures": 0, "doubtful": 0}, "brief": {"failures": 1, "doubtful": 0}},
    "updates_skipped": 0,
}


def steps(*changes: dict, start: int = 1) -> list[dict]:
    return [{"step": number, **SOUND, **change} for number, change in enumerate(changes, start=start)]


@pytest.mark.parametrize(
    ("name", "within", "beyond"),
    [
        ("entropy_collapse", {"entropy": 0.021}, {"entropy": 0.019}),
        ("length_collapse", {"completion_length_mean": 26.0}, {"completion_length_mean": 24.0}),
        ("length_explosion", {"truncated_fraction": 0.5}, {"truncated_fraction": 0.51}),
        ("no_signal", {"groups_zero_deviation": 7}, {"groups_zero_deviation": 8}),
        ("no_signal", {"groups_no_reward": 4}, {"groups_no_reward": 5}),
        ("clip_fraction", {"clip_high_fraction": 0.19}, {"clip_high_fraction": 0.21}),
        ("logprob_mismatch", {"logprob_mismatch_mean": 0.1}, {"logprob_mismatch_mean": 0.11}),
        (
            "reward_failures",
            {"rewards": {"brief": {"failures": 1, "doubtful": 0}}},
            {"rewards": {"accuracy": {"failures": 2, "doubtful": 0}, "brief": {"failures": 0, "doubtful": 0}}},
        ),
        (
            "reward_failures",
            {"rewards": {"brief": {"failures": 0, "doubtful": 0}}},
            {"rewards": {"brief": {"failures": 0, "doubtful": 8}}},
        ),
    ],
)
def test_an_alarm_rings_once_the_last_five_steps_are_beyond_its_limit_and_not_at_it(name, within, beyond):
    for change, wanted in ((within, ()), (beyond, (name,))):
        alarms = AlarmState(steps(*[{}] * WINDOW))
        for record in steps(*[change] * WINDOW, start=WINDOW + 1):
            alarms.see(record)
        assert alarms.active == wanted


def test_one_skipped_update_is_chance_and_two_in_five_steps_ring():
    skipped, sound = {"updates_skipped": 1}, {}
    assert AlarmState(steps(sound, skipped, sound, sound, sound)).active == ()
    assert AlarmState(steps(sound, skipped, sound, sound, skipped)).active == ("skipped_updates",)
    assert AlarmState(steps(skipped, sound, sound, sound, sound, skipped)).active == ()


def test_an_alarm_is_told_when_it_begins_and_when_it_is_over_and_not_between():
    alarms, told = AlarmState(), {}
    cut, sound = {"truncated_fraction": 0.9}, {"truncated_fraction": 0.0}
    for record in steps(*[sound] * 5, *[cut] * 4, *[sound] * 4):
        told[record["step"]] = [change.describe() for change in alarms.see(record)]
    # the mean of five is above a half with three of 0.9, which is so from step 8 on and until step 10
    assert {step: len(lines) for step, lines in told.items() if lines} == {8: 1, 12: 1}
    assert told[8][0].startswith("alarm length_explosion since step 8: more than half of the completions are cut at")
    assert told[12] == ["alarm length_explosion, which began with step 8, is over with step 12"]


def test_nothing_rings_before_there_are_five_steps():
    assert AlarmState(steps(*[{"truncated_fraction": 1.0}] * 4)).active == ()


def test_a_resumed_run_goes_on_with_the_alarms_that_rang_and_since_when():
    records = steps(*[{"truncated_fraction": 0.9}] * 7)
    alarms = AlarmState(records)
    assert alarms.see({"step": 8, **SOUND, "truncated_fraction": 0.9}) == []
    (change,) = [change for _ in range(4) for change in alarms.see({"step": 9, **SOUND})]
    assert (change.since, change.begins) == (5, False)


def test_steps_that_measured_nothing_ring_nothing():
    nothing = {"entropy": None, "logprob_mismatch_mean": None}
    assert AlarmState(steps(*[nothing] * 6)).active == ()


def test_every_alarm_reads_numbers_that_a_step_writes_and_names_a_remedy():
    assert set(SOUND) <= set(METRICS)
    assert len({rule.name for rule in RULES}) == len(RULES) == 8
    assert all(rule.meaning and rule.remedy for rule in RULES)
