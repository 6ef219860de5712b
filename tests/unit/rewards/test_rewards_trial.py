"""What a reward function returns is known before weights are read."""

import threading

import pytest

from paceline.errors import RewardError
from paceline.rewards.function import needs_group
from paceline.rewards.resolving import resolve
from paceline.rewards.startup import self_test
from tests.support.scripted import task

TASKS = [task(str(number), answer=str(number)) for number in range(20)]


def fixed(result):
    return lambda completions, **columns: result


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        ([1.0], r"'mine' returned 1 items, expected a list of 8 numbers or None"),
        ("good", r"'mine' returned 'good' of type str, .*; return numbers, not text"),
        ({0: 1.0}, r"of type dict, .*; return its values as a list"),
        (None, r"returned None of type NoneType, .*; let it end with a return statement"),
        ([None] * 8, r"'mine' returned None for each of 8 made-up completions.*return a number"),
    ],
)
def test_a_wrong_result_is_refused_at_the_start_with_function_and_remedy(result, sentence):
    with pytest.raises(RewardError, match=sentence):
        self_test({"mine": fixed(result)}, TASKS)


def test_the_trial_sees_gold_answers_of_rows_from_the_whole_dataset():
    seen = []

    def mine(completions, answer, completion_ids, **columns):
        seen.extend(zip(completions, answer, map(len, completion_ids), strict=True))
        return [1.0] * len(completions)

    self_test({"mine": mine}, TASKS)
    assert seen == [(str(n), str(n), 7) for n in (0, 2, 5, 7, 10, 12, 15, 17)]


def test_the_trial_gives_whole_groups_to_a_function_that_needs_them():
    seen = []

    @needs_group
    def mine(answer, **columns):
        seen.extend(answer)
        return [1.0] * len(answer)

    self_test({"mine": mine}, TASKS[:2], num_generations=3)
    assert seen == ["0", "0", "0", "1", "1", "1"]


def test_what_a_function_raises_on_made_up_completions_does_not_stop_the_start():
    def picky(completions, **columns):
        raise KeyError("only JSON")

    assert self_test({"picky": picky}, TASKS) == ()


def test_one_function_that_speaks_is_enough():
    assert self_test({"silent": fixed([None] * 8), "mine": fixed([0.5] * 8)}, TASKS) == ()


def test_all_may_be_silent_beside_a_built_in_function_or_a_reward_model():
    silent = fixed([None] * 8)
    assert self_test({"silent": silent}, TASKS, are_all=False) == ()
    assert self_test({"silent": silent, "accuracy": resolve("accuracy")}, TASKS) == ()


def test_a_function_that_never_returns_is_refused_at_its_deadline_before_weights_are_read():
    def waits(completions, **columns):
        threading.Event().wait()

    with pytest.raises(RewardError, match=r"'waits' took more than 0\.05 seconds for 8 made-up completions"):
        self_test({"waits": waits}, TASKS, timeout=0.05)
