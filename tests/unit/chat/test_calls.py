"""A tool call is read in the form of its family, or its line says what is wrong; see `tests/support/call_cases.py`."""

from typing import get_args

import pytest

from paceline.chat.call_records import UNTYPED, CallFormat, MalformedCall, calls_of, cast_by_schema
from paceline.chat.calls import ParsedTurn, assistant_message, call_format_in, parse_calls
from tests.support.call_cases import (
    F_CALL,
    FENCED,
    G_CALL,
    KIMI_F,
    MALFORMED,
    READ,
    F,
    deep,
    deepseek,
    glm,
    kimi,
    tags,
    xml,
)


@pytest.mark.parametrize(("call_format", "text", "content", "calls"), READ)
def test_calls_are_read_in_order_and_the_rest_is_content(call_format, text, content, calls):
    assert parse_calls(text, call_format, prefilled=False) == ParsedTurn(content=content, calls=tuple(calls))


@pytest.mark.parametrize(("call_format", "text", "line"), MALFORMED)
def test_a_malformed_call_is_told_in_one_line_and_carries_nothing_out(call_format, text, line):
    parsed = parse_calls(text, call_format, prefilled=False)
    assert parsed == ParsedTurn(content=text.strip(), malformed=line)
    assert "\n" not in line
    line.encode()


@pytest.mark.parametrize(("call_format", "text", "content", "calls"), READ)
def test_within_a_thought_that_the_prompt_has_opened_nothing_is_a_call(call_format, text, content, calls):
    if "</think>" not in text:
        assert parse_calls(text, call_format, prefilled=True) == ParsedTurn(content="")
    after = parse_calls(f"Hm.</think>\n{text}", call_format, prefilled=True)
    assert after == parse_calls(f"<think>Hm.</think>\n{text}", call_format, prefilled=False)
    if text.startswith(("<tool_call>", "[TOOL_CALLS]", "{", "Action")) and "</think>" not in text:
        assert after == ParsedTurn(content=content, calls=tuple(calls))


def test_arguments_may_be_nested_a_hundred_deep():
    (_, arguments), = parse_calls(tags(deep(98)), "hermes", prefilled=False).calls  # fmt: skip
    assert str(arguments["x"]) == "[" * 98 + "]" * 98


PIECES = ["<tool_call>", "</tool_call>", "<function=f>", "<parameter=x>", "[TOOL_CALLS]", "[TOOL_CALLS]f[ARGS]{"]
PIECES += ["<|python_tag|>", "{", "[", "{}", '{"name":', '{"a":', "Action:\n", "Action Input:", "Observation:\n"]
PIECES += ["<tool_call><function=f>", "<tool_call>f<arg_key>", "<arg_key>x</arg_key><arg_value>", "</arg_value>"]
PIECES += ["<|tool_calls_section_begin|>", "<|tool_call_begin|>f:0<|tool_call_argument_begin|>", "```json\n{"]
PIECES += ["<tool_call></think>", "</think> <think>{", "<tool_call>[]</tool_call>", "\\", '"', " \n", "<parameter=x>\n"]


@pytest.mark.sampled(32)
@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("call_format", get_args(CallFormat))
def test_a_huge_turn_of_nothing_but_marks_is_read_and_has_no_call(piece, call_format):
    for before in ("", "<tool_call><function=f>" if call_format == "xml" else '[{"name":'):
        assert not parse_calls(before + piece * 20_000, call_format, prefilled=False).calls


@pytest.mark.parametrize(
    ("text", "call_format"),
    [
        (tags(F), "hermes"),
        ("</tool_call>", "hermes"),
        (tags('{"name": "f", "arguments": {"x": "<function=f>"}}'), "hermes"),
        (tags(xml("f")), "xml"),
        (glm("f", ("x", "1")), "glm"),
        (glm("f", between=""), "glm"),
        (tags(f'{{"name": "f", "arguments": {{"x": "{glm("f")!s}"}}}}'.replace("\n", " ")), "hermes"),
        ("Well. " + deepseek(FENCED), "deepseek"),
        (deepseek('f<\N{FULLWIDTH VERTICAL LINE}>{"x": "</tool_call><|python_tag|>"}'), "deepseek"),
        (kimi(KIMI_F), "kimi"),
        (kimi(KIMI_F).removeprefix("<|tool_calls_section_begin|>"), "kimi"),
        (tags('{"name": "f", "arguments": {"x": "<|tool_call_begin|>"}}'), "hermes"),
        (f"\n[{F}]", "openai"),
        ("Action: f", "react"),
        ("", "react"),
    ],
)
def test_a_text_without_a_template_is_read_by_its_marks(text, call_format):
    assert call_format_in(text) == call_format


def test_the_message_has_the_calls_in_the_form_of_chat_templates():
    parsed = ParsedTurn(content="Well.", calls=(F_CALL, G_CALL))
    assert assistant_message(parsed) == {
        "role": "assistant",
        "content": "Well.",
        "tool_calls": [
            {"type": "function", "id": "call00000", "function": {"name": "f", "arguments": {"x": 1}}},
            {"type": "function", "id": "call00001", "function": {"name": "g", "arguments": {}}},
        ],
    }
    assert calls_of(assistant_message(parsed)) == [F_CALL, G_CALL]
    thinking = {"role": "assistant", "content": "Well.", "reasoning_content": "Hm."}
    assert assistant_message(ParsedTurn(content="Well."), reasoning="Hm.") == thinking
    # Llama's template takes an empty list for calls.
    assert assistant_message(ParsedTurn(content="Well.")) == {"role": "assistant", "content": "Well."}


def test_records_of_a_table_are_calls_too():
    filled = {"name": "f", "arguments": {"x": 1}, "function": None, "parameters": None}
    assert calls_of([filled, {"function": {"name": "g", "arguments": "{}"}}]) == [F_CALL, G_CALL]
    assert calls_of([]) == []
    for wrong in (None, 5, [5], {"name": "f", "arguments": object()}, {"name": "f", "arguments": {"x": float("nan")}}):
        with pytest.raises(MalformedCall):
            calls_of(wrong)


def tool(name, required=(), **properties):
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": "It works.", "parameters": parameters}}


WEATHER = tool(
    "weather",
    ["city"],
    city={"type": "string"},
    days={"type": "integer"},
    share={"type": "number", "nullable": True},
    anything=True,
    hourly={"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    tags={"type": ["array", "null"]},
    place={"$ref": "#/$defs/Place"},
)
SCHEMAS = [WEATHER, tool("now")]


@pytest.mark.parametrize(
    ("argument", "text", "value"),
    [
        ("city", "3", "3"),
        ("days", "3", 3),
        ("days", "3.0", 3),
        ("days", "3.5", "3.5"),
        ("days", "three", "three"),
        ("share", "3.5", 3.5),
        ("share", "None", None),
        ("hourly", "True", True),
        ("hourly", "false", False),
        ("hourly", "1", "1"),
        ("tags", '["a"]', ["a"]),
        ("place", '{"x": 1}', {"x": 1}),
        ("place", "1", "1"),
        ("anything", "[1]", [1]),
        ("unknown", "1", "1"),
    ],
)
def test_a_format_without_types_takes_them_from_the_schema(argument, text, value):
    for form, written in (("xml", tags(xml("weather", (argument, text)))), ("glm", glm("weather", (argument, text)))):
        ((_, arguments),) = parse_calls(written, form, prefilled=False, tools=SCHEMAS).calls
        assert arguments == {argument: value}
        assert type(arguments[argument]) is type(value)


def test_a_format_with_types_keeps_them():
    for call_format in set(get_args(CallFormat)) - set(UNTYPED):
        same = {"days": "3", "share": "1", "city": 5}
        assert cast_by_schema(("weather", same), SCHEMAS, call_format) == ("weather", same)
        _, whole = cast_by_schema(("weather", {"days": 3.0, "share": 2.0}), SCHEMAS, call_format)
        assert [type(whole["days"]), type(whole["share"])] == [int, float]  # 3.0 is 3 in JSON


def test_plain_text_after_action_input_is_the_one_argument_of_its_tool():
    one, two = tool("f", x={"type": "integer"}), tool("f", x={"type": "integer"}, input={"type": "string"})
    text = "Action: f\nAction Input: 3"
    assert parse_calls(text, "react", prefilled=False, tools=[one]).calls == (("f", {"x": 3}),)
    assert parse_calls(text, "react", prefilled=False, tools=[two]).calls == (("f", {"input": "3"}),)
    assert parse_calls(text, "react", prefilled=False, tools=[tool("g")]).calls == (("f", {"input": "3"}),)


def test_every_format_is_in_the_table_of_odd_calls():
    assert {row[0] for row in READ} == {row[0] for row in MALFORMED} == set(get_args(CallFormat))


NO_SCHEMAS = (
    *(None, 5, [], {"properties": None}, {"properties": 5}, {"properties": ["x"]}, {"properties": "x"}),
    *({"properties": {"x": one}} for one in (None, 5, "integer", ["integer"], True, {"type": None}, {"type": 5})),
    *({"properties": {"x": one}} for one in ({"type": [{}]}, {"type": []}, {"type": {}}, {"type": [["a"]]})),
    *({"properties": {"x": one}} for one in ({"anyOf": 5}, {"anyOf": [5]}, {"oneOf": {"type": 1}}, {"anyOf": "x"})),
)


@pytest.mark.parametrize("parameters", NO_SCHEMAS)
@pytest.mark.parametrize("call_format", ["xml", "hermes", "react"])
def test_what_is_no_schema_names_no_type(parameters, call_format: str):
    schema = {"type": "function", "function": {"name": "f", "parameters": parameters}}

    assert cast_by_schema(("f", {"x": "Oslo", "y": 3.0}), [schema], call_format) == ("f", {"x": "Oslo", "y": 3.0})
