"""A tool call is right when tool and arguments are the row's, in any of its formats."""

import json

import pyarrow
import pytest

from paceline.chat.calls import ParsedTurn, assistant_message, call_format_in, parse_calls
from paceline.chat.thinking import visible_text
from paceline.errors import DataError, RewardError
from paceline.rewards.resolving import resolve
from tests.support.call_cases import MALFORMED, READ, deepseek, glm, kimi, tags, xml

THINK = "<think>look it up</think>\n"
GOLD = 'Action: weather\nAction Input: {"city": "Oslo", "days": 3}'


def call(name, arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def grade(completion, answer=GOLD, tool_calls=None, prompt="q", messages=None):
    (value,) = resolve("tool_call")(
        prompts=[prompt],
        completions=[completion],
        answer=[answer],
        tool_calls=[tool_calls],
        completion_messages=None if messages is None else [messages],
    )
    return value


OSLO = call("weather", {"days": 3, "city": "Oslo"})


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        (GOLD, 1),
        (THINK + "Thought: the weather\n" + GOLD, 1),
        (
            'Action: weather\nAction Input: {"days":3.0,"city":"Oslo"}\nObservation: rain\nAction: x\nAction Input: {}',
            1,
        ),
        (OSLO, 1),  # the form does not matter
        ("I will look. " + OSLO, 1),
        ('{"name": "weather", "parameters": {"city": "Oslo", "days": 3}}', 1),  # as Llama writes it
        ('[{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}]', 1),  # Mistral's, without its special token
        (tags(xml("weather", ("city", "Oslo"), ("days", "3"))), 1),
        (tags(xml("weather", ("city", "Oslo"), ("days", "4"))), 0),
        (tags(xml("weather", ("city", "Oslo"))), 0),
        (call("weather", json.dumps({"city": "Oslo", "days": 3})), 1),  # arguments as text, as OpenAI has them
        ('Action: Weather\nAction Input: {"city": "Oslo", "days": 3}', 0),
        ('Action: weather\nAction Input: {"city": "Oslo", "days": "3"}', 0),
        ('Action: weather\nAction Input: {"city": "Oslo", "days": 4}', 0),
        ('Action: weather\nAction Input: {"city": "Oslo"}', 0),
        ('Action: weather\nAction Input: {"city": "Oslo", "days": 3', 0),
        ('Action: weather\nAction Input: {"city": "Rome", "city": "Oslo", "days": 3}', 0),  # which of the two?
        (OSLO + OSLO, 0),
        (OSLO + call("weather", {}), 0),
        (OSLO + "<tool_call>", 0),
        (GOLD + "\nAction: weather", 0),
        (GOLD + "\nI am waiting.", 0),
        (OSLO.replace("</tool_call>", ""), 0),
        ('<tool_call>{"name": "weather"}</tool_call>', 0),
        ("<tool_call>[1]</tool_call>", 0),
        (f"<think>{OSLO}</think>", 0),
        (f"<think>{GOLD}</think>", 0),
        ("Action: weather", 0),
        ("", 0),
    ],
)
def test_a_call_is_right_when_tool_and_arguments_are_those_of_the_row(completion, score):
    assert grade(completion) == score


@pytest.mark.parametrize(
    ("answer", "tool_calls"),
    [
        (GOLD, None),
        (OSLO, None),
        ('{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}', None),
        ('[{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}]', None),
        (None, [{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}]),
        ("42", '[{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}]'),
        (None, [{"type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo", "days": 3}'}}]),
    ],
)
def test_a_row_gives_its_calls_in_any_of_these_forms(answer, tool_calls):
    assert grade(OSLO, answer, tool_calls) == 1
    assert grade(call("weather", {"city": "Rome", "days": 3}), answer, tool_calls) == 0


TURNS = [row[:2] for row in (*READ, *MALFORMED)]


@pytest.mark.parametrize(("call_format", "text"), [row for row in TURNS if row[0] not in ("llama", "mistral")])
@pytest.mark.parametrize("prompt", ["q", "q\n<think>\n"])
def test_what_is_graded_as_a_call_is_what_conversations_carry_out(call_format, text, prompt):
    is_prefilled = prompt != "q"
    if call_format_in(visible_text(text, prefilled=is_prefilled)) != call_format:
        return  # a single turn shows no template: its form is that of its marks
    parsed = parse_calls(text, call_format, prefilled=is_prefilled)
    wanted = [{"name": name, "arguments": arguments} for name, arguments in parsed.calls]
    if wanted:
        assert grade(text, None, wanted, prompt) == 1
    assert grade(text, None, [*wanted, {"name": "f", "arguments": {"x": 7}}], prompt) == 0


@pytest.mark.parametrize(("call_format", "text"), TURNS)
def test_a_conversation_is_graded_by_the_calls_that_it_has_carried_out(call_format, text):
    parsed = parse_calls(text, call_format, prefilled=False)
    wanted = [{"name": name, "arguments": arguments} for name, arguments in parsed.calls]
    first = assistant_message(ParsedTurn(content="", calls=(("first", {}),)))
    result = {"role": "tool", "content": OSLO}
    messages = [first, result, assistant_message(parsed), result, {"role": "assistant", "content": OSLO}]
    assert grade("sampled text", None, [{"name": "first", "arguments": {}}, *wanted], messages=messages) == 1
    assert grade("sampled text", OSLO, messages=messages) == 0
    if wanted:
        assert grade("sampled text", None, [{"name": "first", "arguments": {}}], messages=messages) == 0


def test_a_completion_of_one_turn_is_graded_by_its_text():
    assert grade(OSLO, messages=[{"role": "assistant", "content": OSLO}]) == 1


def test_several_calls_are_compared_in_any_order_and_each_as_often_as_asked():
    gold = json.dumps([{"name": name, "arguments": {}} for name in ("a", "b", "b")])
    a, b = call("a", {}), call("b", {})
    assert grade(b + a + b, gold) == 1
    assert [grade(text, gold) for text in (a + b, a + a + b, a + b + b + b, a)] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "text",
    [
        'price{"item": "tea"}',
        '[TOOL_CALLS]price[ARGS]{"item": "tea"}',
        'Let me see. [TOOL_CALLS][{"name": "price", "arguments": {"item": "tea"}}]',
        '<|python_tag|>{"name": "price", "parameters": {"item": "tea"}}',
        glm("price", ("item", "tea")),
        deepseek('function<\uff5ctool\u2581sep\uff5c>price\n```json\n{"item": "tea"}\n```'),
        kimi('functions.price:0<|tool_call_argument_begin|>{"item": "tea"}'),
    ],
)
def test_calls_in_a_familys_own_marks_are_read_in_one_turn_and_in_a_row(text):
    gold = [{"name": "price", "arguments": {"item": "tea"}}]
    assert grade(text, None, gold) == 1
    if not text.startswith("price{"):  # an answer such as this speaks of no call
        assert grade(text, text) == 1
        assert grade(call("price", {"item": "tea"}), None, text) == 1
        assert grade(call("price", {"item": "milk"}), text) == 0
    assert grade(text.replace("tea", "milk"), None, gold) == 0


@pytest.mark.parametrize(
    ("text", "gold", "right"),
    [
        ("1000", "1e3", 0),
        ("1e3", "1e3", 1),
        ("3.0", "3", 0),
        ("3.0", 3, 1),
        ("007", "7", 0),
        ("True", True, 1),
        ("4", 3, 0),
    ],
)
def test_a_value_without_a_type_is_read_as_the_type_that_is_asked_for(text, gold, right):
    completion = f"<tool_call><function=f><parameter=x>{text}</parameter></function></tool_call>"
    assert grade(completion, None, [{"name": "f", "arguments": {"x": gold}}]) == right


def test_true_is_not_one_and_text_is_not_a_number():
    gold = json.dumps({"name": "f", "arguments": {"x": 1, "y": [0.5, None]}})
    assert grade(call("f", {"y": [0.5, None], "x": 1.0}), gold) == 1
    for wrong in ({"x": True, "y": [0.5, None]}, {"x": 1, "y": [None, 0.5]}, {"x": "1", "y": [0.5, None]}):
        assert grade(call("f", wrong), gold) == 0


def test_in_a_form_without_types_a_number_is_its_text():
    gold = json.dumps({"name": "f", "arguments": {"x": "3", "y": 3, "z": [1], "on": True}})
    text = tags(xml("f", ("x", "3"), ("y", "3.0"), ("z", "[1]"), ("on", "True")))
    assert grade(text, gold) == 1
    assert grade(text.replace("[1]", "[2]"), gold) == 0
    assert grade(text.replace("True", "1"), gold) == 0


def test_an_input_that_is_no_json_is_compared_as_text():
    gold = "Action: search\nAction Input: capital of Norway"
    assert grade("Action: search\nAction Input: capital of Norway ", gold) == 1
    assert grade('Action: search\nAction Input: "capital of Norway"', gold) == 0


def test_an_argument_that_a_table_filled_in_with_null_is_not_asked_for():
    table = pyarrow.Table.from_pylist(
        [{"tool_calls": [{"name": "f", "arguments": one}]} for one in ({"x": 1}, {"city": "Oslo", "at": {"h": 3}})]
    )
    first, second = (row["tool_calls"] for row in table.to_pylist())
    assert first[0]["arguments"] == {"x": 1, "city": None, "at": None}
    assert grade(call("f", {"x": 1}), None, first) == 1
    assert grade(call("f", {"x": 1, "city": None}), None, first) == 1
    assert grade(call("f", {"city": "Oslo", "at": {"h": 3}}), None, second) == 1
    assert grade(call("f", {"city": "Oslo"}), None, second) == 0
    assert grade(call("f", {"x": 1, "city": "Oslo"}), None, first) == 0


@pytest.mark.parametrize(
    "tool_calls",
    [
        "[{'name': 'weather', 'arguments': {'city': 'Oslo', 'days': 3}}]",  # as pandas writes them into CSV
        [{"function": {"name": "weather", "arguments": "{'city': 'Oslo', 'days': 3}"}, "id": "c"}],
        {"tool_calls": [{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}]},
    ],
)
def test_gold_calls_are_read_as_the_calls_of_messages_are(tool_calls):
    assert grade(OSLO, None, tool_calls) == 1
    assert grade(call("weather", {"city": "Rome", "days": 3}), None, tool_calls) == 0


@pytest.mark.parametrize("arguments", [{"arguments": ""}, {"arguments": None}, {"arguments": {}}, {}])
def test_a_gold_call_without_arguments_asks_for_none(arguments):
    assert grade(call("f", {}), None, [{"name": "f", **arguments}]) == 1
    assert grade(call("f", {"x": 1}), None, [{"name": "f", **arguments}]) == 0


@pytest.mark.parametrize("answer", [None, "42", ""])
def test_a_row_that_speaks_of_no_call_is_not_graded(answer):
    assert grade(OSLO, answer) is None
    assert grade(OSLO, answer, []) is None


def test_an_empty_cell_of_calls_leaves_them_to_the_answer():
    assert [grade(OSLO, OSLO, nothing) for nothing in ("", [], float("nan"))] == [1, 1, 1]


@pytest.mark.parametrize(
    ("answer", "tool_calls"), [('[{"tool": "f"}]', None), ("Action: f", None), (None, [1]), (None, 5)]
)
def test_calls_that_cannot_be_read_are_a_failure_of_the_row_and_no_wrong_answer(answer, tool_calls):
    assert isinstance(grade(OSLO, answer, tool_calls), RewardError)


def test_a_row_whose_column_cannot_be_read_is_found_with_the_data():
    check = resolve("tool_call").check_row
    check({"tool_calls": [{"name": "f", "arguments": {}}]}, "d.jsonl:1")
    check({"tool_calls": None}, "d.jsonl:1")
    check({}, "d.jsonl:1")
    with pytest.raises(
        DataError, match=r"row d\.jsonl:7: column 'tool_calls': the row asks for .* '\[1\]'; give a list"
    ):
        check({"tool_calls": [1]}, "d.jsonl:7")


def test_deep_and_huge_arguments_are_no_call():
    assert grade('<tool_call>{"name": "weather", "arguments": ' + "[" * 100_000 + "</tool_call>") == 0
    assert grade('Action: weather\nAction Input: {"days": 1' + "0" * 5000 + "}") == 0
    assert grade('Action: weather\nAction Input: {"days": 1e999}') == 0
    assert grade("Action: weather\nAction Input: " + '{"a":' * 100_000) == 0


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        (THINK + GOLD, 1),
        (THINK + GOLD + "\n", 1),
        (THINK + "Action: search\nAction Input: anything", 1),
        (GOLD, 0),
        ("Sure. " + THINK + GOLD, 0),
        (THINK + "Now: " + GOLD, 0),
        (THINK + GOLD + "\n" + GOLD, 0),
        (THINK + GOLD + "\nObservation: rain", 0),
        (THINK + "Action: \nAction Input: {}", 0),
        (THINK + "Action: a\nb\nAction Input: {}", 0),
        (THINK + "Action: a\nAction Input:", 0),
        (THINK + "Action Input: {}\nAction: a", 0),
        ("<think>a</think><think>b</think>" + GOLD, 0),
        ("<think>" + GOLD, 0),
        ("", 0),
    ],
)
def test_the_react_format_is_one_thought_and_one_action(completion, score):
    assert resolve("react_format")(prompts=["q"], completions=[completion]) == [score]


def test_after_a_prompt_that_opens_the_thinking_the_format_goes_on_from_there():
    rest = (THINK + GOLD).removeprefix("<think>")
    assert resolve("react_format")(prompts=["q\n<think>\n", "q"], completions=[rest, rest]) == [1, 0]
    assert grade(THINK.removeprefix("<think>") + OSLO, prompt="q\n<think>\n") == 1
    assert grade(OSLO, prompt="q\n<think>\n") == 0
