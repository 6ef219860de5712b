r"""Tool calls in the text of a model: the one parser of the reward `tool_call` and of conversations with tools.

What is carried out is therefore what is graded. Each family of models writes calls in a form of its own:

| format    | a call                                                                                                 |
|-----------|--------------------------------------------------------------------------------------------------------|
| `hermes`  | `<tool_call>{"name": "f", "arguments": {...}}</tool_call>`, one object in each (Hermes, Qwen)           |
| `xml`     | `<tool_call><function=f><parameter=x>1</parameter></function></tool_call>` (Qwen3-Coder, Qwen3.5)       |
| `glm`     | `<tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>` (GLM-4.5 and later)              |
| `deepseek` | `<｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>` in a section (DeepSeek)           |
| `kimi`    | `<\|tool_call_begin\|>functions.f:0<\|tool_call_argument_begin\|>{...}<\|tool_call_end\|>`, likewise    |
| `mistral` | `[TOOL_CALLS][{...}, {...}]`, or `[TOOL_CALLS]f[ARGS]{...}` once per call, or `f{...}` without its marks |
| `llama`   | `{"name": "f", "parameters": {...}}` and nothing else, or the same after `<\|python_tag\|>`            |
| `openai`  | `{"tool_calls": [...]}`, one call or a list of them, and nothing else                                   |
| `react`   | `Action: f` and `Action Input: {...}`, each at the start of a line                                      |

A section is what stands between `<｜tool▁calls▁begin｜>` and `<｜tool▁calls▁end｜>`, or `<|tool_calls_section_begin|>`
and `<|tool_calls_section_end|>`. DeepSeek's V3 and R1 write `function<｜tool▁sep｜>f` and the JSON in a fence.

A call in JSON is `{"name": ..., "arguments": {...}}`, or `{"function": {...}}` around it. `parameters` is another word
for `arguments`, other keys mean nothing, and arguments may be JSON in a string, as in OpenAI's messages.

| odd case                                                           | what it is                                     |
|--------------------------------------------------------------------|------------------------------------------------|
| text before, between and after calls in tags or after a mark     | `content`                                      |
| text before bare JSON (`llama`, `openai`)                          | all is text, no call                           |
| text after JSON that goes to the end of the text                  | malformed                                      |
| bare JSON that names no call and arguments, such as `[1, 2]`       | text                                           |
| a call inside thinking, closed or not                              | no call                                        |
| tags of thinking or of calls inside the texts of a call            | part of its arguments                          |
| `<tool_call>` not closed before the next, a `</tool_call>` too many | malformed                                      |
| JSON that breaks off, a key given twice, `NaN`, `1e999`            | malformed                                      |
| JSON nested too deep, half a surrogate pair                        | malformed                                      |
| no name, an empty name, no arguments, arguments that are no object | malformed; `{}` says that there are none       |
| one call of several malformed                                      | all are: none is carried out                   |
| beside calls a mark of another form, such as `[TOOL_CALLS]`        | malformed                                      |
| several `Action:`                                                  | the last is the call; the others are text      |
| `Action:` after `Observation:`                                    | text: the model has made up what the tool said |
| `Action Input:` that is no JSON object and begins with no `{`      | `{"input": text}`; empty: `{}`                 |
| the last `Action:` has no name, or no `Action Input:` after it    | malformed                                      |
| a value of `xml` or `glm`                                          | text, unless the tool's schema has other types |
| a section of `deepseek` or `kimi` not ended, or without its marks  | its calls count                                |
| such a mark and no call                                            | malformed                                      |
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from paceline.chat.call_marks import (
    AFTER_JSON,
    BEFORE_ARGUMENTS,
    CLOSE_CALL,
    GLM_NAME,
    HEADS,
    OF_SECTIONS,
    OPEN_CALL,
    PYTHON_TAG,
    TAGS,
    TOOL_CALLS,
    closing_mark,
    endings,
    first_mark,
    refuse_stray_marks,
    without_sections,
)
from paceline.chat.call_records import (
    TEXT_AFTER,
    TEXT_ARGUMENT,
    CallFormat,
    MalformedCall,
    ParsedCall,
    call_of,
    calls_of,
    cast_by_schema,
    first_json,
    named,
    names_a_call,
    strict_json,
)
from paceline.chat.thinking import ThoughtReader, visible_text
from paceline.chat.tools import call_id


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedTurn:
    """A turn of a model, its calls taken out."""

    content: str
    """Text without thinking and without calls, stripped; a call that is malformed stays in it."""
    calls: tuple[ParsedCall, ...] = ()
    """Calls in the order of the text; empty where one is malformed."""
    malformed: str | None = None
    """What is wrong with a call, in one line for the model; None: nothing."""


def parse_calls(
    text: str, call_format: CallFormat, *, prefilled: bool, tools: Sequence[Mapping[str, Any]] = ()
) -> ParsedTurn:
    """Read the calls of a turn, as the tables at the top of this file say.

    `text` has its special tokens, of which some mark calls, but no end token. `prefilled`: the prompt ends inside a
    thought (see `prefills_think`). `tools`: schemas by which arguments get their types (see `cast_by_schema`).

    >>> parse_calls('So: <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>', "hermes", prefilled=False)
    ParsedTurn(content='So:', calls=(('f', {'x': 1}),), malformed=None)
    """
    visible = visible_text(text, prefilled=prefilled).strip()
    try:
        if call_format == "react":
            content, calls = _react(visible)
        else:
            content, bodies = _bodies(text, call_format, prefilled=prefilled)
            content = without_sections(content, call_format, has_calls=bool(bodies))
            calls = [call for body in bodies for call in _READERS[call_format](body)]
        refuse_stray_marks(content, call_format, has_calls=bool(calls))
    except MalformedCall as error:
        return ParsedTurn(content=visible, malformed=str(error))
    return ParsedTurn(
        content=content.strip() if calls else visible,
        calls=tuple(cast_by_schema(call, tools, call_format) for call in calls),
    )


def call_format_in(visible: str) -> CallFormat:
    """Return the form in which a text seems to write calls, special tokens left out; `react` where it has no mark.

    >>> call_format_in("<tool_call>{}</tool_call>"), call_format_in('{"name": "f"}'), call_format_in("Action: f")
    ('hermes', 'openai', 'react')
    >>> call_format_in("[TOOL_CALLS]f[ARGS]{}"), call_format_in('f{"x": 1}'), call_format_in("<|python_tag|>{}")
    ('mistral', 'mistral', 'llama')
    >>> call_format_in("<tool_call>f</tool_call>"), call_format_in("<|tool_call_begin|>functions.f:0")
    ('glm', 'kimi')
    """
    first = first_mark(visible)
    if first is not None and first[0] in OF_SECTIONS:
        return OF_SECTIONS[first[0]]
    if PYTHON_TAG in visible and CLOSE_CALL not in visible:
        return "llama"
    if TOOL_CALLS in visible and CLOSE_CALL not in visible:
        return "mistral"
    if _UNMARKED_CALL.match(visible):
        return "mistral"
    if re.search(r"<tool_call>\s*<function=", visible):
        return "xml"
    if first is not None and first[0] == OPEN_CALL and GLM_NAME.match(visible, first.end()):
        return "glm"
    if OPEN_CALL in visible or CLOSE_CALL in visible:
        return "hermes"
    return "openai" if visible.lstrip()[:1] in ("{", "[") else "react"


def assistant_message(parsed: ParsedTurn, *, reasoning: str | None = None) -> dict[str, object]:
    """Return a turn as chat templates and reward functions read it, in the form of OpenAI's messages.

    Arguments are an object, not a string: templates would encode a string once more. Without calls there is no
    `tool_calls`, which some templates take an empty list for. `reasoning`: the thinking that the turn begins with; a
    template keeps it or leaves it out.
    """
    message: dict[str, object] = {"role": "assistant", "content": parsed.content}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if parsed.calls:
        message["tool_calls"] = [
            {"type": "function", "id": call_id(None, index), "function": {"name": name, "arguments": arguments}}
            for index, (name, arguments) in enumerate(parsed.calls)
        ]
    return message


_UNMARKED_CALL = re.compile(r"\s*[\w.-]+\s*(?=\{)")
"""A call of Mistral's without its mark, which is a special token: a name and an object."""
_OPENINGS: Mapping[CallFormat, re.Pattern[str]] = {
    **{form: re.compile(re.escape(opens)) for form, (opens, _) in TAGS.items()},
    "mistral": re.compile(rf"\[TOOL_CALLS\]|\A{_UNMARKED_CALL.pattern}"),
    "llama": re.compile(r"<\|python_tag\|>|[{\[]"),
    "openai": re.compile(r"[{\[]"),
}


def _bodies(text: str, call_format: CallFormat, *, prefilled: bool) -> tuple[str, list[str]]:
    """Return the visible text around calls, and what stands in each; after a mark or as bare JSON, up to the end."""
    thoughts = ThoughtReader(prefilled=prefilled)
    kept, bodies, at, end, is_said, is_open = list[str](), list[str](), 0, 0, False, False
    ends = endings(text, call_format)
    openings = [*map(re.Match.span, _OPENINGS[call_format].finditer(text)), (len(text), len(text))]
    for (start, inside), (following, _) in zip(openings, [*openings[1:], openings[-1]], strict=True):
        if start < at:  # inside the call before
            continue
        visible = thoughts.visible(text[at:start])
        if thoughts.is_restarted:  # all before was thinking
            kept, bodies, is_said, is_open = [], [], False, False
        kept.append(visible)
        at, is_said = start, is_said or visible.strip() != ""
        if thoughts.is_thinking or start == len(text):
            continue
        if call_format in TAGS:
            end, is_closed = closing_mark(text, inside, following, end, call_format, ends)
            if is_closed:
                bodies.append(text[inside:end])
                at = end + len(TAGS[call_format][1])
            else:
                is_open = True
        elif call_format == "mistral" or not is_said or text[start] == "<":
            bodies.append(text[start:])
            at = len(text)
    if is_open:
        raise MalformedCall(f"a call is not closed: write {TAGS[call_format][1]} after it")
    return "".join(kept), bodies


def _hermes(body: str) -> list[ParsedCall]:
    return [call_of(strict_json(body))]


_FUNCTION = re.compile(r"<function=([^<>\n]+)>\s*(.*)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^<>\n]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)


def _xml(body: str) -> list[ParsedCall]:
    function = _FUNCTION.fullmatch(body.strip())
    if function is None:
        raise MalformedCall("a call is no <function=NAME>...</function>, with one <parameter=NAME>...</parameter> each")
    name, text = function.groups()
    arguments, at = dict[str, Any](), 0
    while at < len(text):
        parameter = _PARAMETER.match(text, at)
        if parameter is None:
            raise MalformedCall(f"an argument of {named(name)} is no <parameter=NAME>...</parameter>")
        if parameter[1] in arguments:
            raise MalformedCall(f"the argument {named(parameter[1])} of {named(name)} is given twice")
        arguments[parameter[1]] = parameter[2]
        at = parameter.end()
    return [(name, arguments)]


_GLM_ARGUMENT = re.compile(r"<arg_key>([^<>]+)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)


def _glm(body: str) -> list[ParsedCall]:
    head = GLM_NAME.match(body)
    if head is None:
        raise MalformedCall(
            "a call is no NAME, with <arg_key>NAME</arg_key><arg_value>...</arg_value> for each argument"
        )
    arguments, at = dict[str, Any](), head.end()
    while at < len(body):
        argument = _GLM_ARGUMENT.match(body, at)
        if argument is None:
            raise MalformedCall(
                f"an argument of {named(head[1])} is no <arg_key>NAME</arg_key><arg_value>...</arg_value>"
            )
        if argument[1] in arguments:
            raise MalformedCall(f"the argument {named(argument[1])} of {named(head[1])} is given twice")
        arguments[argument[1]] = argument[2]
        at = argument.end()
    return [(head[1], arguments)]


def _headed(body: str, call_format: CallFormat) -> list[ParsedCall]:
    """The call of a body in which the name stands before the arguments, which are JSON."""
    head = HEADS[call_format].match(body)
    if head is None:
        name = {"deepseek": "NAME", "kimi": "functions.NAME:0"}[call_format]
        raise MalformedCall(f"a call is no {name}{BEFORE_ARGUMENTS[call_format]}{{...}}")
    arguments, end = first_json(body, head.end())
    if AFTER_JSON.fullmatch(body, end) is None:
        raise MalformedCall(TEXT_AFTER)
    return [call_of({"name": head[head.lastindex or 0], "arguments": arguments})]


_BETWEEN_CALLS = re.compile(r"\s*")
_NAMED_CALL = re.compile(r"\s*([^\s\[\]{}]+)(?:\[CALL_ID\][^\s\[\]{}]*)?(?:\[ARGS\])?\s*(?=\{)")


def _mistral(body: str) -> Iterator[ParsedCall]:
    at, end = 0, len(body.rstrip())
    while at < end:
        at += len(TOOL_CALLS) if body.startswith(TOOL_CALLS, at) else 0
        call = _NAMED_CALL.match(body, at)
        value, after = first_json(body, at if call is None else call.end())
        if call is None:
            yield from calls_of(value)
        else:
            yield call_of({"name": call[1], "arguments": value})
        at = _BETWEEN_CALLS.match(body, after).end()  # type: ignore[union-attr]  # matches anything
        if at < end and not body.startswith(TOOL_CALLS, at) and (call is None or not _NAMED_CALL.match(body, at)):
            raise MalformedCall(TEXT_AFTER)


_MEANT = re.compile(r'[\s\[{]*"(?:name|type|id|function|tool_calls)"\s*:')
_BETWEEN = re.compile(r"\s*;?\s*")


def _bare(body: str) -> list[ParsedCall]:
    """Calls where the text is JSON values alone, several with `;` or space between; none where it is another text."""
    text = body.removeprefix(PYTHON_TAG)
    is_meant, values, at = text != body or bool(_MEANT.match(text)), list[Any](), 0
    try:
        while not values or at < len(text):
            if values and text[at] not in "{[":
                raise MalformedCall(TEXT_AFTER)
            value, at = first_json(text, at)
            values.append(value)
            at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]  # matches anything
    except MalformedCall:
        if is_meant or names_a_call(values):
            raise
        return []
    if text == body and not names_a_call(values):
        return []
    return [call for value in values for call in calls_of(value)]


_READERS: Mapping[CallFormat, Callable[[str], Iterable[ParsedCall]]] = {
    "hermes": _hermes,
    "xml": _xml,
    "glm": _glm,
    "deepseek": partial(_headed, call_format="deepseek"),
    "kimi": partial(_headed, call_format="kimi"),
    "mistral": _mistral,
    "llama": _bare,
    "openai": _bare,
}
"""Readers of what `_bodies` finds."""


_LABEL = re.compile(r"^[ \t]*(Thought|Action Input|Action|Observation|Final Answer)[ \t]*:", re.MULTILINE)


def labelled(text: str) -> list[tuple[str, str]]:
    r"""Return the labels that start a line, each with the text after it, stripped.

    They are Thought, Action, Action Input, Observation and Final Answer.

    >>> labelled('Thought: hm\nAction: f\nAction Input: {}')
    [('Thought', 'hm'), ('Action', 'f'), ('Action Input', '{}')]
    """
    pieces = _LABEL.split(text)
    return [(label, piece.strip()) for label, piece in zip(pieces[1::2], pieces[2::2], strict=True)]


def _react(visible: str) -> tuple[str, list[ParsedCall]]:
    """The text around the last action, and its call."""
    starts = [*(label.start() for label in _LABEL.finditer(visible)), len(visible)]
    pairs = labelled(visible)
    end = next((index for index, (label, _) in enumerate(pairs) if label == "Observation"), len(pairs))
    at = next((at for at in reversed(range(end)) if pairs[at][0] in ("Action", "Action Input")), None)
    if at is None:
        return visible, []
    (before, name), (label, text) = pairs[at - 1] if at else ("", ""), pairs[at]
    if (before, label) != ("Action", "Action Input") or not name:
        raise MalformedCall('"Action:" with the name of a tool and "Action Input:" do not follow each other')
    arguments = strict_json(text) if text.startswith("{") else {TEXT_ARGUMENT: text} if text else {}
    return visible[: starts[at - 1]] + visible[starts[at + 1] :], [(name, arguments)]
