"""Rows of each known dataset format become prompt and answer, and a row that cannot is refused by name."""

import json
from decimal import Decimal

import numpy
import pytest

from paceline.config.sections import DataConfig
from paceline.data.formats import with_prompt
from paceline.data.rows import Row
from paceline.errors import DataError


def asked(columns, **options):
    got = with_prompt(Row(row_id="a.jsonl:7", columns=columns), DataConfig(dataset="a.jsonl", **options))
    return got.prompt, got.answer


def user(text):
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize(
    ("columns", "prompt", "answer"),
    [
        # ColossalChat: one message, or a list of them
        ({"messages": {"role": "user", "content": "1+2?"}, "gt_answer": "3"}, user("1+2?"), "3"),
        ({"messages": user("1+2?"), "gt_answer": "3"}, user("1+2?"), "3"),
        ({"messages": user("1+2?"), "solution": r"$\boxed{3}$"}, user("1+2?"), "3"),
        # TRL: raw text stays raw text
        ({"prompt": "1+2=", "answer": "3"}, "1+2=", "3"),
        ({"prompt": user("1+2?"), "ground_truth": 3}, user("1+2?"), "3"),
        ({"prompt": user("1+2?"), "solution": r"It is \boxed{3}."}, user("1+2?"), "3"),
        ({"prompt": user("1+2?"), "reward_model": {"ground_truth": "3", "style": "rule"}}, user("1+2?"), "3"),
        ({"prompt": "Write a poem."}, "Write a poem.", None),
        ({"prompt": "Write a poem.", "image": None, "images": []}, "Write a poem.", None),  # as tables fill them
        # GSM8K: after the last ####, commas kept
        ({"question": "?", "answer": "a #### b\n#### 1,000 "}, user("?"), "1,000"),
        # NuminaMath: its messages hold the solution and must not be read
        (
            {"problem": "?", "solution": r"\boxed{\frac{1}{2}}", "messages": [*user("?"), {"role": "assistant"}]},
            user("?"),
            r"\frac{1}{2}",
        ),
        ({"problem": "?", "solution": "as derived", "answer": "5"}, user("?"), "5"),
        ({"problem": "?", "solution": "as derived"}, user("?"), None),
        # with tests: a program is no answer to compare with
        ({"messages": {"role": "user", "content": "?"}, "test_cases": {"inputs": ["1"]}}, user("?"), None),
        ({"messages": user("?"), "test_cases": [], "solution": "print(1)"}, user("?"), None),
        ({"messages": user("?"), "test_cases": None, "solution": "1"}, user("?"), "1"),
        ({"messages": user("?"), "test_cases": [], "answer": "1"}, user("?"), "1"),
        ({"prompt": user("?"), "reward_model": {"ground_truth": ' {"inputs": ["1"], "outputs": '}}, user("?"), None),
        ({"prompt": user("?"), "reward_model": {"ground_truth": {"inputs": []}}}, user("?"), None),
        ({"prompt": user("?"), "reward_model": {"ground_truth": "{1, 2}"}}, user("?"), "{1, 2}"),
        ({"problem": "?", "verification_info": {"test_cases": []}}, user("?"), None),
        (
            {"problem_statement": "?", "verification_info": {}, "gold_standard_solution": "print(1)"},
            user("?"),
            None,
        ),
        ({"question": "?", "input_output": "{}", "solutions": '["print(1)"]', "starter_code": ""}, user("?"), None),
        ({"question": "?\n", "input_output": "{}", "starter_code": "def f(x):\n"}, user("?\n\ndef f(x):"), None),
        # plain, and numbers
        ({"question": "?", "answer": " Paris "}, user("?"), "Paris"),
        ({"question": "?", "answer": 3}, user("?"), "3"),
        ({"question": "?", "answer": 2.5}, user("?"), "2.5"),
        ({"question": "?", "answer": None}, user("?"), None),
        ({"question": "?", "answer": ""}, user("?"), None),
        # reasoning-gym: a drawn grid is no GSM8K answer
        ({"question": "?", "answer": ".##.\n#### 1", "reasoning_gym": {}}, user("?"), ".##.\n#### 1"),
    ],
)
def test_rows_of_known_datasets_are_read_as_they_are_meant(columns, prompt, answer):
    assert asked(columns) == (prompt, answer)


def test_named_columns_override_what_would_be_recognised():
    columns = {"question": "a?", "answer": "1", "task": "b?", "gold": 2}
    assert asked(columns, prompt_column="task", answer_column="gold") == (user("b?"), "2")
    assert asked(columns, prompt_column="task") == (user("b?"), "1")
    assert asked(columns, answer_column="gold") == (user("a?"), "2")


def test_columns_that_nobody_knows_need_only_be_named():
    assert asked({"task": "b?", "gold": r"\boxed{2}"}, prompt_column="task", answer_column="gold") == (user("b?"), "2")


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"text": "x", "label": 1}, {}, "no known format has the columns text, label; name one with --prompt-column"),
        ({}, {}, r"columns \(none\)"),
        ({"question": "x"}, {"prompt_column": "q"}, "has no column 'q'; its columns: question; set --prompt-column"),
        ({"question": "x"}, {"answer_column": "a"}, "has no column 'a'; its columns: question; set --answer-column"),
        ({"prompt": None}, {}, "must be text or messages, got None"),
        ({"prompt": 5}, {}, "must be text or messages, got int"),
        ({"prompt": ""}, {}, "prompt must be text that is not empty, got ''"),
        ({"question": " \n"}, {}, "question must be text that is not empty"),
        ({"prompt": "\ud83d"}, {}, "half a surrogate pair"),
        ({"prompt": []}, {}, "an empty list"),
        ({"prompt": ["hi"]}, {}, "message 1 must be an object with role and content"),
        ({"prompt": [{"content": "x"}]}, {}, "message 1 must be an object with role and content"),
        ({"prompt": [{"role": "human", "content": "x"}]}, {}, "has the role 'human'; the roles are system"),
        ({"prompt": [{"role": "user", "content": None}]}, {}, "message 1's content must be text that is not empty"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, {}, "message 1's content must be a text"),
        ({"messages": [*user("x"), {"role": "assistant", "content": "3"}]}, {}, "ends with a message of role 'assist"),
        ({"prompt": [{"role": "system", "content": "x"}]}, {}, "ends with a message of role 'system'"),
        ({"question": "x", "answer": ["1"]}, {}, "column 'answer' holds a list, but an answer must be text"),
        ({"question": "x", "answer": float("nan")}, {}, "column 'answer' holds nan, but .* leave the cell empty"),
        ({"prompt": float("nan")}, {}, "must be text or messages, got float"),
        ({"prompt": [{"role": "user", "content": ""}]}, {}, "message 1's content must be text that is not empty"),
        ({"prompt": "x", "image": "x.png"}, {}, "has a column 'image'; models of text are trained here, remove the"),
        ({"question": "x", "images": ["x.png"]}, {"prompt_column": "question"}, "has a column 'images'; models of"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_with_the_reason(columns, options, message):
    with pytest.raises(DataError, match=f"^row a.jsonl:7: .*{message}"):
        asked(columns, **options)


STORED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": 'Say "it\'s" in caf\u00e9'}]


@pytest.mark.parametrize(
    "columns",
    [
        {"messages": json.dumps(STORED)},
        {"question": json.dumps(STORED)},
        {"prompt": "\n " + json.dumps(STORED, indent=2)},
        {"prompt": repr(STORED)},  # what pandas writes into a CSV file
        {"prompt": json.dumps(json.dumps(STORED))},
        {"prompt": [json.dumps(one) for one in STORED]},
        {"prompt": [STORED[0], repr(STORED[1])]},
        {"prompt": json.dumps([{"id": 1, **one} for one in STORED])},
        {"prompt": numpy.array(STORED, dtype=object)},  # what pandas reads from a parquet file
        {"prompt": [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in STORED]},
        {"prompt": [{**one, "content": json.dumps([{"type": "text", "text": one["content"]}])} for one in STORED]},
    ],
)
def test_messages_are_read_however_they_are_stored(columns):
    prompt, _ = asked(columns)
    assert [{key: one[key] for key in ("role", "content")} for one in prompt] == STORED


@pytest.mark.parametrize(
    "text",
    [
        "[{'role': 'user', 'content': 'a'}\n {'role': 'user', 'content': 'b'}]",  # as numpy prints them
        "array([{'role': 'user', 'content': 'a'}], dtype=object)",
        '{"role": "user", "content": "a"}\n{"role": "user", "content": "b"}',
        '[{"role": "user", "content": "a"},]]',
        '[{"from": "human", "value": "a"}]',
        '{"messages": [{"role": "user", "content": "a"}]}',
    ],
)
@pytest.mark.parametrize("column", ["prompt", "question", "messages"])
def test_text_that_looks_like_messages_never_reaches_the_model(column, text):
    with pytest.raises(DataError, match=r"looks like messages|must be an object with role and content"):
        asked({column: text})
    with pytest.raises(DataError, match=r"looks like messages|holds messages as text|must be an object"):
        asked({column: user(text)})


@pytest.mark.parametrize(
    "text",
    [
        "[3, 1, 2] sorted is?",
        "[3, 1, 2]",
        '{"role": "admin"}',
        '{"users": [{"role": "admin", "content": 2}]}',
        '[{"role": "user", "content": "a"}] How many messages are these?',
        "Is {'role': 'user', 'content': 'a'} a dict?",
    ],
)
def test_a_question_with_brackets_stays_a_question(text):
    assert asked({"question": text}) == (user(text), None)


def test_arguments_of_an_earlier_call_are_an_object_however_they_are_stored():
    add = {"name": "add", "arguments": {"a": 1, "city": "Z\u00fcrich"}}
    given = {**add, "arguments": json.dumps(add["arguments"])}
    filled = {**add, "arguments": {**add["arguments"], "of_another_row": None}}
    for calls in ([{"id": "c", "function": given}], [given], json.dumps([{"function": given}]), [{"function": filled}]):
        prompt, _ = asked(
            {"prompt": [*user("?"), {"role": "assistant", "content": "", "tool_calls": calls}, *user("!")]}
        )
        assert [one["function"] for one in prompt[1]["tool_calls"]] == [add]
    with pytest.raises(
        DataError, match=r"message 1's tool_calls\[0\]\.function\.arguments must be a JSON object in a te"
    ):
        asked(
            {"prompt": [{"role": "assistant", "content": "", "tool_calls": [{**given, "arguments": "{"}]}, *user("!")]}
        )


@pytest.mark.parametrize("nothing", [None, [], [None], "", float("nan"), numpy.array([])])
def test_a_column_of_images_without_an_image_is_no_matter(nothing):
    assert asked({"question": "?", "image": nothing, "images": nothing}) == (user("?"), None)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Decimal("0.10"), "0.10"),
        (Decimal("1E+2"), "100"),
        (numpy.int64(3), "3"),
        (numpy.float64(2.5), "2.5"),
        (numpy.float32(0.5), "0.5"),
    ],
)
def test_an_answer_may_be_any_number_of_a_table(answer, text):
    assert asked({"question": "?", "answer": answer})[1] == text


def test_keys_that_a_table_filled_with_nothing_do_not_reach_the_template():
    message = {"role": "user", "content": "x", "tool_calls": None, "name": "Ann"}
    assert asked({"prompt": [message]})[0] == [{"role": "user", "content": "x", "name": "Ann"}]


def test_an_assistant_that_called_a_tool_may_have_said_nothing():
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
    prompt, _ = asked({"prompt": [*user("1+2?"), call, {"role": "tool", "content": "3"}]})
    add = {"type": "function", "function": {"name": "add", "arguments": {}}}
    assert prompt[1] == {"role": "assistant", "content": "", "tool_calls": [add]}


def test_a_call_and_its_result_of_openais_first_interface_are_read_as_todays():
    add = {"name": "add", "arguments": "{'a': 1}"}
    old = [{"role": "assistant", "content": None, "function_call": add}, {"role": "function", "content": "4"}]
    prompt, _ = asked({"prompt": [*user("1+3?"), *old]})
    read = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    assert prompt[1:] == [
        {"role": "assistant", "content": "", "tool_calls": [read]},
        {"role": "tool", "content": "4"},
    ]
    both = {**old[0], "tool_calls": [add]}
    with pytest.raises(DataError, match="message 1's function_call must not stand beside tool_calls; keep one"):
        asked({"prompt": [both, *user("?")]})


PARTS = [{"type": "text", "text": "Hi"}]


@pytest.mark.parametrize("stored", [json.dumps(PARTS), repr(PARTS), json.dumps(PARTS[0]), PARTS, PARTS[0]])
def test_parts_of_text_are_the_text_however_they_are_stored(stored):
    assert asked({"question": stored})[0] == user("Hi")
    assert asked({"prompt": stored})[0] == "Hi"
    turns = [{"role": role, "content": stored} for role in ("user", "assistant", "user")]
    assert [one["content"] for one in asked({"prompt": turns})[0]] == ["Hi"] * 3


def test_the_result_of_a_tool_stays_as_the_tool_wrote_it():
    result = {"role": "tool", "content": json.dumps(PARTS)}
    assert asked({"prompt": [*user("?"), result]})[0][1] == result


@pytest.mark.parametrize("text", ['["Hi"]', "['Hi']"])
def test_a_list_of_one_text_that_is_stored_as_text_is_refused(text):
    with pytest.raises(DataError, match="column 'prompt' holds a list of one text as text; store the text itself"):
        asked({"prompt": text})
    assert asked({"prompt": text + " has how many items?"})[0] == text + " has how many items?"


@pytest.mark.parametrize(
    ("columns", "answer"),
    [
        ({"solution": r"$x=\boxed{5}$ or $x=\boxed{6}$."}, "5, 6"),
        ({"problem": "?", "solution": r"\boxed{5}, \boxed{6} \text{ and } \boxed{7}"}, "5, 6, 7"),
        ({"solution": r"Half of \boxed{12} is \boxed{6}"}, "6"),
        ({"answer": "", "solution": "42"}, "42"),
        ({"gt_answer": " ", "answer": "42"}, "42"),
        ({"reward_model": json.dumps({"style": "rule", "ground_truth": "42"})}, "42"),
        ({"reward_model": "{'style': 'rule', 'ground_truth': '42'}"}, "42"),
        ({"answer": "", "reward_model": {"ground_truth": 42}}, "42"),
        ({"reward_model": "a judge"}, None),
    ],
)
def test_a_gold_answer_is_found_wherever_the_row_has_it(columns, answer):
    assert asked({"question": "?", **columns})[1] == answer


def test_a_list_of_answers_is_no_test_case():
    with pytest.raises(
        DataError, match=r"column 'reward_model\.ground_truth' holds a list, but an answer must be text"
    ):
        asked({"question": "?", "reward_model": {"ground_truth": ["42"]}})
