"""The dataset's own rows are tried on the built-in functions before weights are read."""

import pytest

from paceline.errors import RewardError
from paceline.rewards.function import BuiltIn
from paceline.rewards.resolving import resolve
from paceline.rewards.startup import self_test, unmet_needs
from paceline.types import Task


def task(number, answer="42", prompt="Question", **columns):
    return Task(
        task_id=f"d.jsonl:{number}",
        prompt=prompt,
        prompt_ids=(1,),
        answer=answer,
        columns={"answer": answer, **columns},
    )


def named(*names):
    return {name: resolve(name) for name in names}


def fixed(gold, junk, value):
    """A built-in function that scores a text by `value`."""

    def call(*, completions, **columns):
        return [value(text) for text in completions]

    return {"mine": BuiltIn(name="mine", call=call, gold=lambda task: gold, junk=lambda task: junk, maximum=2.0)}


@pytest.mark.parametrize("prompt", ["Question", "Question\n<think>\n", "Question\n<reasoning>\n"])
def test_sound_answers_pass_in_every_style(prompt):
    tasks = [task(index, answer, prompt) for index, answer in enumerate(["42", r"\frac{1}{2}", "(1,2)", "blue", None])]
    names = ["accuracy", "accuracy(plain=true)", "boxed", "gsm8k", "random", "repetition"]
    names += ["cosine(max_length=9)", "soft_overlong(max_length=9)"]
    assert self_test(named(*names), tasks) == ()


@pytest.mark.parametrize("prompt", ["Question", "Question\n<think>\n"])
def test_formats_pass_whether_or_not_the_prompt_opens_the_thinking(prompt):
    assert self_test(named("format", "think_answer_tags", "react_format"), [task(0, prompt=prompt)]) == ()


def test_a_format_that_the_prompt_makes_impossible_is_refused():
    with pytest.raises(RewardError, match=r"'format' does not give full marks to the gold answer of 1 of 1"):
        self_test(named("format"), [task(0, prompt="Question\n<reasoning>\n")])


def test_one_bad_answer_in_a_hundred_is_reported_and_two_are_refused_with_their_rows():
    tasks = [task(index, str(index)) for index in range(100)]
    tasks[7] = task(7, "</answer>")
    assert self_test(named("accuracy"), tasks) == ("d.jsonl:7",)
    tasks[7], tasks[8] = task(7, "}"), task(8, "1} and {2")
    message = r"'boxed' .* gold answer of 2 of 100 sampled tasks \(d\.jsonl:7, d\.jsonl:8\)"
    with pytest.raises(RewardError, match=message):
        self_test(named("boxed"), tasks)


def test_gold_answers_are_read_in_all_rows_and_not_only_in_the_sample():
    tasks = [task(index, str(index)) for index in range(1000)]
    tasks[1], tasks[3] = task(1, "See solution"), task(3, r"\frac{1}{")
    assert self_test(named("accuracy", "cosine(max_length=9)"), tasks) == ("d.jsonl:1", "d.jsonl:3")
    tasks[5:25:2] = [task(index, "See solution") for index in range(5, 25, 2)]
    message = r"'gsm8k' cannot recognise the gold answer of 12 of 1000 tasks \(d\.jsonl:1, d\.jsonl:3, d\.jsonl:5, "
    with pytest.raises(RewardError, match=message):
        self_test(named("gsm8k"), tasks)


@pytest.mark.long
def test_tool_calls_are_read_in_all_rows():
    good, bad = '[{"name": "f", "arguments": {}}]', '[{"tool": "f"}]'
    tasks = [task(index, None, tool_calls=good) for index in range(3000)]
    tasks[1] = task(1, None, tool_calls=bad)
    assert self_test(named("tool_call"), tasks) == ("d.jsonl:1",)
    tasks[:31] = [task(index, None, tool_calls=bad) for index in range(31)]
    message = r"cannot recognise the gold answer of 31 of 3000 tasks \(d\.jsonl:0, d\.jsonl:1, .*, \.\.\.\)"
    with pytest.raises(RewardError, match=message):
        self_test(named("tool_call"), tasks)


@pytest.mark.parametrize(
    ("name", "does"),
    [
        ("accuracy", "compares with gold answers"),
        ("cosine(max_length=9)", "compares with gold answers"),
        ("gsm8k", "compares with gold answers"),
        ("tool_call", "compares with tool calls"),
        ("code", "runs test cases"),
    ],
)
def test_a_function_without_anything_to_grade_by_is_refused(name, does):
    with pytest.raises(RewardError) as refusal:
        self_test(named(name), [task(number, None) for number in range(3)])
    assert f"{name!r} {does} and none of the 3 tasks has one" in str(refusal.value)


def test_one_row_with_an_answer_is_enough():
    assert self_test(named("accuracy", "format"), [task(0, None), task(1, "3")]) == ()


def test_a_row_is_tried_on_the_functions_that_it_is_for():
    for_format = {"reward_funcs": ["format"]}
    tasks = [task(number, "1} and {2", **for_format) for number in range(50)] + [task(50, reward_funcs=None)]
    assert self_test(named("boxed", "format"), tasks) == ()
    with pytest.raises(RewardError, match="'boxed' does not give full marks to the gold answer of 50 of 51"):
        self_test(named("boxed", "format"), [task(number, "1} and {2") for number in range(50)] + [task(50)])


def test_gold_must_reach_the_maximum_and_junk_must_stay_below():
    assert self_test(fixed("good", ("bad",), {"good": 2.0, "bad": 1.9}.get), [task(0)]) == ()
    for value in ({"good": 1.9, "bad": 0.0}, {"good": 2.0, "bad": 2.0}):
        with pytest.raises(RewardError, match=r"'mine' does not give full marks .*, or gives them to junk"):
            self_test(fixed("good", ("bad",), value.get), [task(0)])


def test_a_grader_that_fails_is_quoted():
    with pytest.raises(RewardError, match=r"\(d\.jsonl:0\).*the first failure: 'mine' raised ZeroDivisionError"):
        self_test(fixed("good", (), lambda text: 1 / 0), [task(0)])


def test_functions_of_the_user_are_not_asked_for_gold():
    functions = named("accuracy") | {"mine": lambda **columns: 1 / 0}
    assert self_test(functions, [task(0)]) == ()
    assert self_test({"accuracy": lambda **columns: 1 / 0}, [task(0)]) == ()


def test_an_argument_that_no_column_gives_is_named():
    with pytest.raises(RewardError, match=r"'mine' asks for the argument 'tests', .* it can have answer, level"):
        self_test({"mine": lambda completions, tests: [0.0]}, [task(0, level=1)])


def test_rows_that_lack_what_a_function_needs_are_counted_and_named():
    tasks = [task(1), task(2, answer=None), task(3, answer=" ")]
    (sentence,) = unmet_needs(named("accuracy", "format"), tasks)
    assert "'accuracy' compares with gold answers and 2 of 3 tasks have none (d.jsonl:2, d.jsonl:3)" in sentence
    assert unmet_needs(named("accuracy"), tasks[:1]) == ()
