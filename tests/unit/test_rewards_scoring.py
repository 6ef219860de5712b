import asyncio
import math

import numpy as np
import pytest

from paceline.errors import RewardError, TrainingError
from paceline.rewards import check_failure_rate, combine, resolve, score, self_test
from paceline.types import Completion, Task


def task(index, answer="1", prompt="p", **columns):
    return Task(task_id=f"d.jsonl:{index}", prompt=prompt, prompt_ids=(1,), answer=answer, columns=columns)


def completion(text):
    return Completion(
        token_ids=tuple(text.encode()),
        logprobs=(0.0,) * len(text.encode()),
        finish_reason="stop",
        text=text,
        policy_version=0,
    )


def grade(function, texts, tasks=None):
    tasks = tasks or [task(index) for index in range(len(texts))]
    return score({"f": function}, tasks, [completion(text) for text in texts])


def test_every_column_the_gold_answer_and_the_tokens_are_given_as_lists():
    seen = {}

    def f(**arguments):
        seen.update(arguments)
        return [0, True, None]

    tasks = [task(0, level=3, answer="a"), task(1, answer=None), task(2, level=5, prompts="shadowed")]
    scores = grade(f, ["x", "yz", ""], tasks)
    assert scores.values == {"f": (0.0, 1.0, None)}
    assert scores.failed == {"f": ()}
    assert scores.culprit is None
    assert seen == {
        "prompts": ["p", "p", "p"],
        "completions": ["x", "yz", ""],
        "completion_ids": [[120], [121, 122], []],
        "answer": ["a", None, "1"],
        "level": [3, None, 5],
    }


def test_a_function_without_keywords_gets_what_its_signature_names():
    assert grade(lambda completions, level=7: [len(completions), level], ["a", "b"]).values["f"] == (2.0, 7.0)


def test_a_missing_argument_is_named_before_any_call():
    with pytest.raises(RewardError, match=r"'f' asks for the argument 'tests', which .* it can have level, answer"):
        grade(lambda completions, tests: [0.0], ["a"], [task(0, level=1)])


def test_one_function_cannot_change_the_lists_of_another():
    def spoil(completions):
        completions.clear()
        return [0.0]

    def count(completions):
        return [len(completions)]

    assert score({"a": spoil, "b": count}, [task(0)], [completion("x")]).values["b"] == (1.0,)


def test_an_async_function_is_awaited_also_where_an_event_loop_is_running():
    async def f(completions):
        await asyncio.sleep(0)
        return [len(text) for text in completions]

    async def notebook():
        return grade(f, ["abc"])

    assert grade(f, ["abc"]).values["f"] == asyncio.run(notebook()).values["f"] == (3.0,)


def test_only_the_rows_that_fail_are_lost_and_the_first_is_the_culprit():
    def f(completions):
        return [1 / int(text) for text in completions]

    scores = grade(f, ["1", "0", "2", "x"])
    assert scores.values["f"] == (1.0, None, 0.5, None)
    assert scores.failed["f"] == (1, 3)
    assert scores.culprit.startswith("'f' raised ZeroDivisionError on row d.jsonl:1: division by zero\nTraceback")
    assert "in f\n" in scores.culprit


def test_a_function_that_leaves_the_program_only_fails():
    def f(completions):
        raise SystemExit(0)

    assert grade(f, ["a"]).failed["f"] == (0,)


def test_a_failure_of_the_batch_alone_is_reported_though_every_row_passes():
    def f(completions):
        return [1.0] if len(completions) == 1 else [][1]

    scores = grade(f, ["a", "b"])
    assert scores.values["f"] == (1.0, 1.0)
    assert "IndexError on the whole batch" in scores.culprit


def test_a_number_that_is_not_finite_is_a_failure_and_not_a_reward():
    scores = grade(lambda completions: [1.0, math.nan, -math.inf, np.float32(0.5)], ["a", "b", "c", "d"])
    assert scores.values["f"] == (1.0, None, None, 0.5)
    assert scores.failed["f"] == (1, 2)
    assert scores.culprit == "'f' returned nan on row d.jsonl:1, which is not finite"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (1.0, r"'f' returned 1\.0 of type float, expected a list of 2 numbers or None"),
        ({"a": 1.0, "b": 2.0}, r"of type dict, expected a list of 2"),
        (np.zeros(2), r"of type ndarray, expected a list of 2"),
        (None, r"returned None of type NoneType, expected"),
        ([1.0], r"returned 1 items, expected a list of 2"),
        ([1.0, "0.5"], r"returned '0\.5' of type str at 1, expected"),
        ([[1.0], [0.0]], r"returned \[1\.0\] of type list at 0, expected"),
    ],
)
def test_a_result_of_the_wrong_shape_ends_the_run_and_names_function_got_and_expected(result, message):
    with pytest.raises(RewardError, match=message):
        grade(lambda completions: result, ["a", "b"])


def test_an_empty_batch_scores_nothing_and_unequal_lengths_are_refused():
    assert score({"f": lambda completions: [1 / 0]}, [], []).values == {"f": ()}
    with pytest.raises(ValueError, match="got 1 tasks, 2 completions"):
        grade(lambda completions: [], ["a", "b"], [task(0)])


def test_the_weighted_sum_leaves_out_what_is_none():
    assert combine({"a": 1.0, "b": None, "c": -0.5}, {"a": 2.0, "b": 100.0, "c": 1.0}) == 1.5
    assert combine({"a": None}, {"a": 1.0}) is None
    assert combine({"a": 0.0}, {"a": 1.0}) == 0.0


def test_the_run_stops_above_the_failure_rate_and_names_the_culprit():
    scores = grade(lambda completions: [1 / int(text) for text in completions], ["1", "1", "1", "0"])
    check_failure_rate(scores, limit=0.25)
    with pytest.raises(TrainingError, match=r"'f' failed on 1 of 4 completions \(25\.0%\), above .* 0\.24") as stop:
        check_failure_rate(scores, limit=0.24)
    assert "ZeroDivisionError on row d.jsonl:3" in str(stop.value)
    assert stop.value.exit_status == 1


@pytest.mark.parametrize("prompt", ["Question", "Question\n<think>\n"])
def test_the_self_test_passes_on_sound_answers_and_skips_functions_of_the_user(prompt):
    tasks = [task(index, answer, prompt) for index, answer in enumerate(["42", r"\frac{1}{2}", "(1,2)", "blue", None])]
    names = ("accuracy", "format", "think_answer_tags", "boxed", "random")
    functions = {name: resolve(name) for name in names} | {"mine": lambda **columns: 1 / 0}
    assert self_test(functions, tasks) == ()
    assert self_test({"accuracy": lambda **columns: 1 / 0}, tasks) == ()


def test_the_self_test_reports_one_bad_answer_in_a_hundred_and_refuses_two():
    tasks = [task(index, str(index)) for index in range(100)]
    tasks[7] = task(7, "</answer>")
    assert self_test({"accuracy": resolve("accuracy")}, tasks) == ("d.jsonl:7",)
    tasks[7], tasks[8] = task(7, "}"), task(8, "1} and {2")
    message = r"'boxed' .* gold answer of 2 of 100 sampled tasks \(d\.jsonl:7, d\.jsonl:8\)"
    with pytest.raises(RewardError, match=message):
        self_test({"boxed": resolve("boxed")}, tasks)


def test_a_function_that_needs_gold_answers_refuses_a_dataset_without_any():
    tasks = [task(number, answer=None) for number in range(3)]
    with pytest.raises(RewardError, match=r"'accuracy' compares with gold answers and none of the 3 tasks has one"):
        self_test({"accuracy": resolve("accuracy")}, tasks)
    assert self_test({"format": resolve("format")}, tasks) == ()
