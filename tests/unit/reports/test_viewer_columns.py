"""The viewer's columns keep every completion, its group and its marks of suspicion, by stated rules."""

import doctest
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.reports.viewer import columns, serving
from paceline.reports.viewer.columns import (
    NAMES,
    PREVIEW,
    RunPart,
    columns_of,
    distinctive,
    grouped,
    length_outliers,
    marks,
    preview,
    steps_unearned,
    talks_of,
    well_paid,
)
from paceline.reports.viewer.documents import REASONS, index_of
from tests.unit.reports.viewed_runs import paid, rollout


def part(step=1, set_name="training"):
    return RunPart(key=f"rollouts-{step:06d}", set_name=set_name, step=step, file=Path("none"), signature=(0, 0))


def made(*records, step=1, **changes):
    return columns_of(part(step, **changes), records, 0)


def rules(*parts, evals=(), grader="accuracy"):
    return [{name for bit, name in enumerate(NAMES) if mask & 1 << bit} for mask in marks(parts, list(evals), grader)]


def held_out(**accuracies):
    return [{"set": "s", "step": int(step[1:]), "accuracy": value} for step, value in accuracies.items()]


@pytest.mark.parametrize("module", [columns, serving], ids=lambda module: module.__name__)
def test_the_examples_hold(module):
    assert doctest.testmod(module).failed == 0


def test_a_group_begins_with_another_prompt_and_with_sample_0():
    records = [rollout(1, 0, "a"), rollout(1, 1, "b"), rollout(1, 0, "c"), rollout(2, 0, "d")]
    assert [[r["completion"] for r in group] for group in grouped(records)] == [["a", "b"], ["c"], ["d"]]


def test_held_out_completions_of_a_task_stand_together_without_numbers():
    records = [{key: value for key, value in rollout(1, 0, text).items() if key != "sample"} for text in "ab"]
    assert [len(group) for group in grouped(records)] == [2]


def test_a_long_text_is_shown_by_its_beginning_and_its_end_within_the_limit():
    line = preview("begin " + "x" * 5000 + " end")
    assert line.startswith("begin")
    assert line.endswith("end")
    assert len(line) <= PREVIEW


def test_columns_keep_what_is_missing_apart_from_zero():
    found = made(rollout(1, 0, "a", reward=None, rewards={"accuracy": None, "mine": 0.0}), rollout(1, 1, "b"))
    assert found.rewards == (None, 0.0)
    assert found.of_functions == {"accuracy": (None, 0.0), "mine": (0.0, None)}


def test_the_index_has_each_prompt_once_however_many_steps_sampled_it():
    parts = [made(rollout(1, 0, "a"), rollout(1, 1, "b"), step=step) for step in (1, 2)]
    found = index_of([*parts, made(rollout(7, 0, "c"), step=3)], [0] * 5)
    assert found["tasks"] == ["rows.jsonl:1", "rows.jsonl:7"]
    assert found["labels"] == ["How much is 1 + 1?", "How much is 7 + 1?"]
    assert (found["group_task"], found["group_size"]) == ([0, 0, 1], [2, 2, 1])


def test_the_index_says_why_a_completion_was_dropped_in_a_sentence():
    found = index_of([made(rollout(1, 0, "a", dropped="filtered"), rollout(1, 1, "b"))], [0, 0])
    assert found["dropped"] == [0, -1]
    assert found["dropped_reasons"] == [REASONS["filtered"]]


def test_a_completion_that_suits_no_rule_has_no_mark():
    assert rules(made(paid(1, 0, "2"), rollout(1, 1, "3"))) == [set(), set()]


def test_well_paid_is_the_upper_tenth_of_the_range_and_nothing_where_all_rewards_are_equal():
    assert well_paid([-1.0, 1.0]) == pytest.approx(0.8)
    assert well_paid([1.0, 1.0, None]) is None


def test_a_reward_that_rose_without_held_out_accuracy_marks_the_well_paid_of_those_steps():
    steps = [made(rollout(1, 0, "no"), (paid if step > 5 else rollout)(1, 1, "x"), step=step) for step in range(1, 11)]
    stuck = rules(*steps, evals=held_out(s0=0.3, s5=0.3, s10=0.31))
    assert stuck == [set(), set()] * 5 + [set(), {"unearned"}] * 5
    assert rules(*steps, evals=held_out(s0=0.3, s5=0.3, s10=0.7)) == [set()] * 20


def test_a_rise_of_half_the_range_asks_an_eighth_of_held_out_accuracy():
    means = {1: 0.0, 2: 0.5}
    assert steps_unearned(means, held_out(s0=0.0, s1=0.0, s2=0.124), span=1.0) == {2}
    assert steps_unearned(means, held_out(s0=0.0, s1=0.0, s2=0.126), span=1.0) == frozenset()
    assert steps_unearned(means, [], span=1.0) == frozenset()


def test_paid_against_the_grader_cut_and_for_a_text_of_other_answers_is_marked():
    records = [
        paid(1, 0, "all answers", rewards={"accuracy": 0.0, "format": 1.0}),
        rollout(1, 1, "2"),
        paid(2, 0, "all answers"),
        paid(3, 0, "4", finish_reason="length"),
    ]
    assert rules(made(*records)) == [{"overruled", "reused"}, set(), {"reused"}, {"cut off"}]


def test_the_same_text_under_prompts_of_one_answer_is_no_reuse():
    records = [paid(1, 0, "1+1"), paid(2, 0, "1+1", answer="2"), rollout(3, 0, "0")]
    assert rules(made(*records)) == [set(), set(), set()]


def test_a_conversation_that_its_environment_broke_off_is_marked_whatever_it_earned():
    ends = ["done", "max_turns", "length", "failed", "timed_out"]
    records = [rollout(1, at, f"text {at}", episode={"turns": [], "end": end}) for at, end in enumerate(ends)]
    found = rules(made(*records, paid(2, 0, "5", episode={"turns": [], "end": "failed"}), rollout(3, 0, "no talk")))
    assert found == [set(), set(), set(), {"failed"}, {"failed"}, {"failed"}, set()]
    held_out = columns_of(replace(part(), set_name="held"), records, 0)
    assert rules(held_out) == [set()] * 5


def test_half_a_group_of_one_long_text_is_marked_and_short_answers_are_not():
    long = "".join(chr(97 + at % 26) for at in range(64))
    group = [rollout(1, 0, long), rollout(1, 1, long), rollout(1, 2, "3"), rollout(1, 3, "3")]
    assert [found & {"repeated"} for found in rules(made(*group))] == [{"repeated"}, {"repeated"}, set(), set()]


def test_a_text_that_repeats_itself_is_marked_from_200_characters_on():
    assert "loop" in rules(made(rollout(1, 0, "again " * 40)))[0]
    assert rules(made(rollout(1, 0, "again " * 30))) == [set()]


def test_a_length_is_an_outlier_only_far_from_the_median_of_many():
    assert length_outliers([10, 10, 10, 10, 10, 10, 10, 29]) == []
    assert length_outliers([10, 10, 10, 10, 10, 10, 3, 30]) == [6, 7]
    assert length_outliers([1, 2, 9, 10, 11, 29, 31, 50]) == []
    assert length_outliers([10, 10, 1000]) == []


def test_held_out_completions_are_not_asked():
    found = columns_of(replace(part(), set_name="held"), [rollout(1, 0, "again " * 40)], 0)
    assert rules(found) == [set()]


def test_conversations_have_outcome_turns_failed_calls_and_seconds_and_other_completions_none():
    turns = [{"failed_calls": 2, "seconds": 0.5}, {"failed_calls": 0, "seconds": 1.0}]
    records = [
        rollout(1, 0, "a", episode={"turns": turns, "end": "done"}),
        rollout(1, 1, "b", episode={"turns": turns[:1], "end": "timed_out"}),
        rollout(1, 2, "c"),
    ]
    assert talks_of([made(*records)]) == {
        "outcome": [0, 1, -1],
        "outcome_words": ["ended by its environment", "its environment took too long"],
        "turns": [2, 1, 0],
        "failed_calls": [2, 2, 0],
        "seconds": [1.5, 0.5, 0.0],
    }
    assert talks_of([made(rollout(1, 0, "c"))]) is None


def test_a_step_is_trained_on_once_its_update_is_made():
    parts = [made(rollout(1, 0, "a"), step=step) for step in (1, 2)]
    found = index_of(parts, [0, 0], updated={1})
    assert [one["updated"] for one in found["parts"]] == [True, False]


def test_only_what_all_prompts_share_is_left_out():
    assert distinctive(["same", "same"]) == ["same", "same"]
    assert distinctive(["sys\nHow many figs?\nA:", "sys\nHow many plums?\nA:"]) == ["How many figs?", "How many plums?"]
    assert distinctive(["What is 1 + 2?", "What is 1 + 3?"]) == ["What is 1 + 2?", "What is 1 + 3?"]
