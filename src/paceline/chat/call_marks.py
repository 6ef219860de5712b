"""Marks of tool calls, by the form in which a family of models writes them: where calls begin and end, and their name.

Sources: the chat templates of Qwen3-Coder, GLM-4.5 to 4.7, DeepSeek-V3, R1 and V3.1, and Kimi-K2.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress

from paceline.chat.call_records import CallFormat, MalformedCall, first_json


def _deepseek(words: str) -> str:
    return (
        "<\N{FULLWIDTH VERTICAL LINE}"
        + words.replace(" ", "\N{LOWER ONE EIGHTH BLOCK}")
        + "\N{FULLWIDTH VERTICAL LINE}>"
    )


OPEN_CALL, CLOSE_CALL = "<tool_call>", "</tool_call>"
PYTHON_TAG, TOOL_CALLS = "<|python_tag|>", "[TOOL_CALLS]"
TAGS: Mapping[CallFormat, tuple[str, str]] = {
    **dict.fromkeys(("hermes", "xml", "glm"), (OPEN_CALL, CLOSE_CALL)),
    "deepseek": (_deepseek("tool call begin"), _deepseek("tool call end")),
    "kimi": ("<|tool_call_begin|>", "<|tool_call_end|>"),
}
"""Marks before and after each call, of the forms that have both."""
SECTIONS: Mapping[CallFormat, tuple[str, str]] = {
    "deepseek": (_deepseek("tool calls begin"), _deepseek("tool calls end")),
    "kimi": ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
}
"""Marks before and after all calls, of the forms that have them."""
BEFORE_ARGUMENTS: Mapping[CallFormat, str] = {"deepseek": _deepseek("tool sep"), "kimi": "<|tool_call_argument_begin|>"}
"""Mark between the name of a call and its arguments in JSON."""
OF_SECTIONS: Mapping[str, CallFormat] = {
    mark: form for form, (begin, _) in SECTIONS.items() for mark in (begin, TAGS[form][0])
}
"""Form that a text has whose first mark is this one."""

_SEPARATOR = BEFORE_ARGUMENTS["deepseek"]
HEADS: Mapping[CallFormat, re.Pattern[str]] = {
    "hermes": re.compile(r"\s*"),
    "deepseek": re.compile(  # V3 and R1 write a type before the name and a fence around the JSON
        rf"\s*(?:function{_SEPARATOR}\s*([^\s<>{{}}`]+)\s*```(?:json)?|([^\s<>{{}}`]+)\s*{_SEPARATOR})\s*"
    ),
    "kimi": re.compile(
        rf"\s*(?:functions\.|(?!functions\.))([^\s<>{{}}:]+):\d+\s*{re.escape(BEFORE_ARGUMENTS['kimi'])}\s*"
    ),
}
"""What stands before the JSON of a call, its name where that is no part of the JSON."""
AFTER_JSON = re.compile(r"\s*(?:```\s*)?")
GLM_NAME = re.compile(r"\s*([^\s<>{}\[\]\"]+)\s*(?=<arg_key>|</tool_call>|\Z)")
_CLOSED: Mapping[CallFormat, re.Pattern[str]] = {
    "xml": re.compile(r"(?:</parameter>|<function=[^<>\n]+>)\s*</function>\s*(?=</tool_call>)"),
    "glm": re.compile(r"</arg_value>\s*(?=</tool_call>)"),
}
"""What ends a call whose arguments are texts, before its closing mark."""
_BEGINS: Mapping[CallFormat, re.Pattern[str]] = {
    "xml": re.compile(r"\s*<function="),
    "glm": re.compile(r"\s*[^\s<>]+\s*<arg_key>"),
}
_MARKS = re.compile("|".join(map(re.escape, (OPEN_CALL, PYTHON_TAG, TOOL_CALLS, *OF_SECTIONS))))

_ANY_MARK = re.compile(
    "|".join(
        map(
            re.escape,
            {PYTHON_TAG, TOOL_CALLS, *(mark for pair in (*TAGS.values(), *SECTIONS.values()) for mark in pair)},
        )
    )
)


def first_mark(text: str) -> re.Match[str] | None:
    """Return the first mark in a text that a call or a section of calls begins with, in any form that has one."""
    return _MARKS.search(text)


def endings(text: str, call_format: CallFormat) -> list[tuple[int, int]]:
    """Return where calls may end whose arguments are texts: start and end of what stands before a closing mark."""
    return [match.span() for match in _CLOSED[call_format].finditer(text)] if call_format in _CLOSED else []


def closing_mark(
    text: str, inside: int, following: int, known: int, call_format: CallFormat, ends: Sequence[tuple[int, int]]
) -> tuple[int, bool]:
    """Return where the mark that closes a call begins, and whether it does; marks inside an argument are passed over.

    `following` is where the next call opens, `known` the last closing mark that was looked for, `ends` are `endings`.
    """
    close = TAGS[call_format][1]
    if call_format in _CLOSED:
        index = bisect_left(ends, (inside, 0))
        if index < len(ends) and _BEGINS[call_format].match(text, inside):
            return ends[index][1], True
    else:
        head = HEADS[call_format].match(text, inside)
        # only values such as these hold texts; to read what is no JSON takes as long as the text before it
        if head is not None and text.startswith(("{", "[", '"'), head.end()):
            with suppress(MalformedCall):
                _, end = first_json(text, head.end())
                end = AFTER_JSON.match(text, end).end()  # type: ignore[union-attr]  # matches anything
                if text.startswith(close, end):
                    return end, True
    end = text.find(close, inside) if 0 <= known < inside else known
    return end, inside <= end <= following


def without_sections(content: str, call_format: CallFormat, *, has_calls: bool) -> str:
    """Return the text around calls without the marks of their sections; MalformedCall where no call goes with them."""
    for mark in SECTIONS.get(call_format, ()):
        if mark in content and not has_calls:
            opens, close = TAGS[call_format]
            raise MalformedCall(f"{mark} stands without a call: write {opens} and {close} around each")
        content = content.replace(mark, "")
    return content


def refuse_stray_marks(content: str, call_format: CallFormat, *, has_calls: bool) -> None:
    """Refuse a mark in the text around calls that closes nothing, has nothing around it, or is of another form.

    Without a call, a mark of another form is text: a model may speak of it.

    Raises:
        MalformedCall: there is one.
    """
    if call_format in TAGS and TAGS[call_format][1] in content:
        opens, close = TAGS[call_format]
        raise MalformedCall(f"{close} closes nothing: write {opens} before a call")
    if call_format == "xml" and "<function=" in content:
        raise MalformedCall(f"<function=NAME> stands alone: write {OPEN_CALL} before it, {CLOSE_CALL} after it")
    if has_calls and (other := _ANY_MARK.search(content)):
        raise MalformedCall(f"{other[0]} is a mark of another form of calls: write all calls in one form")
