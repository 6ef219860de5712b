"""Tools: JSON schemas made from functions, and plain text where a chat template has no words for tools.

Schemas come from transformers' own helper, by a function's types and docstring. The form of the text is that of Hermes:
schemas between `<tools>` tags, calls between `<tool_call>` tags, results between `<tool_response>` tags.
"""

import inspect
import json
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, groupby, takewhile
from typing import Any

from paceline.errors import ConfigError, first_line
from paceline.types import Message

REMEDY = "a tool has a type for each argument, and a docstring with a line `name: description` for each below `Args:`"


def check_tool(function: Callable[..., Any]) -> None:
    """Check that a function says what a schema needs, without importing anything for it.

    Raises:
        ConfigError: an argument has no type or description, or cannot be given by name; there is no docstring.
    """
    name = name_of(function)
    description = inspect.getdoc(function) or ""
    if not description:
        raise ConfigError(
            f"tool {name}: it has no docstring, but the model has to know what it does", remedies=[REMEDY]
        )
    for argument, parameter in _parameters(function).items():
        if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
            raise ConfigError(
                f"tool {name}: argument {str(parameter)!r} cannot be given by name, as a model's are",
                remedies=["name each argument"],
            )
        if parameter.annotation is inspect.Parameter.empty:
            raise ConfigError(f"tool {name}: argument {argument!r} has no type", remedies=[REMEDY])
        if not re.search(rf"(?m)^\s*{argument}:", description):
            raise ConfigError(f"tool {name}: its docstring does not describe argument {argument!r}", remedies=[REMEDY])


def tool_schema(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the schema of a function as chat templates show it: `{"type": "function", "function": {...}}`.

    Raises:
        ConfigError: as `check_tool`, or a type is none that JSON has.
    """
    # Here, as it takes seconds, and imports torch for the names of types.
    from transformers.utils.chat_template_utils import (
        DocstringParsingException,
        TypeHintParsingException,
        get_json_schema,
    )

    check_tool(function)
    name = name_of(function)
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError) as error:
        raise ConfigError(f"tool {name}: its types cannot be read ({first_line(error)})", remedies=[REMEDY]) from error
    for argument in _parameters(function):
        try:
            get_json_schema(_only(argument, hints[argument]))
        except TypeHintParsingException as error:
            raise ConfigError(
                f"tool {name}: the type of argument {argument!r} has no counterpart in JSON ({first_line(error)})",
                remedies=["use str, int, float, bool, list, dict, Literal or unions of them"],
            ) from error
    try:
        schema: Mapping[str, Any] = get_json_schema(function)
    except (DocstringParsingException, ValueError) as error:
        raise ConfigError(f"tool {name}: {first_line(error)}", remedies=[REMEDY]) from error
    return schema


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a tool.

    Raises:
        ConfigError: it has none that a model can write.
    """
    name = getattr(function, "__name__", "")
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ConfigError(f"tool {name or function!r}: it has no name of its own", remedies=["give it as a function"])
    return str(name)


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters that a model gives: those of a method without its object."""
    parameters = dict(inspect.signature(function).parameters)
    first = next(iter(parameters.values()), None)
    if first is not None and first.name == "self" and first.annotation is inspect.Parameter.empty:
        del parameters["self"]
    return parameters


def _only(argument: str, hint: object) -> Callable[..., Any]:
    """Make a function with this one argument, to learn whether its type is the one that cannot be converted."""

    def only(**arguments: Any) -> None:
        """Do nothing."""

    parameter = inspect.Parameter(argument, inspect.Parameter.KEYWORD_ONLY, annotation=hint)
    only.__signature__ = inspect.Signature([parameter])  # type: ignore[attr-defined]
    only.__annotations__ = {argument: hint}
    only.__doc__ = f"Do nothing.\n\nArgs:\n    {argument}: Anything."
    return only


def text_schema(name: str, description: str, **arguments: str) -> Mapping[str, Any]:
    """Return the schema of a built-in tool, whose arguments are all texts: what `tool_schema` makes of its function.

    `arguments` are their descriptions by name.
    """
    properties = {argument: {"type": "string", "description": text} for argument, text in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    function = {"name": name, "description": description, "parameters": parameters, "return": {"type": "string"}}
    return {"type": "function", "function": function}


CALL_ID_LENGTH = 9
"""Characters of a call's id: Mistral's templates take letters and digits of this number, all others take anything."""

_DESCRIPTION = """You can call tools. Their JSON schemas are:
<tools>
{schemas}
</tools>
To call one, write its name and arguments as JSON, each call in tags of its own:
<tool_call>
{{"name": "NAME", "arguments": {{"ARGUMENT": "VALUE"}}}}
</tool_call>
What it returns follows in <tool_response> tags."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolFormat:
    """How prompts of a chat template show tools, their calls and their results."""

    schemas: tuple[Mapping[str, object], ...]
    """JSON schemas of the tools: `{"type": "function", "function": {"name": ..., "parameters": ...}}`."""
    shows_tools: bool
    """True: the template writes them in the model's own way; False: messages hold them as plain text."""
    takes_system: bool
    """True if the template takes a system message: it describes the tools, else the first user message does."""

    def written(self, messages: Sequence[Message]) -> list[dict[str, object]]:
        """Return the messages as the template is given them."""
        numbered = with_call_ids(messages)
        return numbered if self.shows_tools else tool_messages(numbered, self.schemas, in_system=self.takes_system)


def tool_messages(
    messages: Sequence[Message], schemas: Sequence[Mapping[str, object]], *, in_system: bool
) -> list[dict[str, object]]:
    """Write tools, calls and results into the content of system, user and assistant messages.

    Results, with user messages that follow them, become one user message.

    >>> tool_messages([{"role": "tool", "content": "4"}, {"role": "tool", "content": "5"}], (), in_system=True)
    [{'role': 'user', 'content': '<tool_response>\\n4\\n</tool_response>\\n<tool_response>\\n5\\n</tool_response>'}]
    """
    plain = list[dict[str, object]]()
    for is_observation, run in groupby(messages, key=lambda message: message["role"] in ("tool", "user")):
        together = list(run)
        if is_observation and any(message["role"] == "tool" for message in together):
            content = _joined([_result(message) for message in together], "\n")
            plain.append({"role": "user", "content": content})
        else:
            plain += [_said(message) for message in together]
    if not schemas:
        return plain
    lines = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas)
    described = _DESCRIPTION.format(schemas=lines)
    first = plain[0]
    if first["role"] == "system":
        return [{**first, "content": f"{first['content']}\n\n{described}"}, *plain[1:]]
    if in_system:
        return [{"role": "system", "content": described}, *plain]
    return [{**first, "content": _joined([described, first["content"]], "\n\n")}, *plain[1:]]


def _result(message: Message) -> object:
    content = message["content"]
    return f"<tool_response>\n{content}\n</tool_response>" if message["role"] == "tool" else content


def _joined(contents: Sequence[object], separator: str) -> object:
    """Join contents into one: a text, or parts where one has parts."""
    if not any(isinstance(content, list) for content in contents):
        return separator.join(map(str, contents))
    parts = list[object]()
    for content in contents:
        parts += [{"type": "text", "text": separator}] * bool(parts)
        parts += content if isinstance(content, list) else [{"type": "text", "text": content}]
    return parts


def _said(message: Message) -> dict[str, object]:
    calls = message.get("tool_calls")
    if not isinstance(calls, Sequence):
        return dict(message)
    blocks = [
        f"<tool_call>\n{json.dumps({key: call['function'][key] for key in ('name', 'arguments')}, ensure_ascii=False)}"
        "\n</tool_call>"
        for call in calls
    ]
    content = [str(message["content"])] if message["content"] else []
    return {"role": message["role"], "content": "\n".join([*content, *blocks])}


def with_call_ids(messages: Iterable[Message]) -> list[dict[str, object]]:
    """Give calls and results the ids that belong together, and results the name of the called tool.

    A result belongs to the call of its id, else to the first call of the turn that no other result belongs to. An id of
    another length or with other characters than templates take is replaced by the place of its call.
    """
    listed = list(messages)
    numbered, calls = list[dict[str, object]](), list[Mapping[str, Any]]()
    free: Iterator[int] = count()
    for number, message in enumerate(listed, start=1):
        complete, asked = dict(message), message.get("tool_calls")
        if message["role"] == "tool":
            named = [index for index, call in enumerate(calls) if call.get("id") == message.get("tool_call_id")]
            index = named[0] if named and message.get("tool_call_id") is not None else next(free)
            call: Mapping[str, Any] | None = calls[index] if index < len(calls) else None
            complete["tool_call_id"] = call_id(message.get("tool_call_id") if call is None else call.get("id"), index)
            complete["name"] = message.get("name") or ("tool" if call is None else call["function"]["name"])
        elif isinstance(asked, Sequence):
            calls = list(asked)
            results = takewhile(lambda result: result["role"] == "tool", listed[number:])
            taken = {result.get("tool_call_id") for result in results} - {None}
            unnamed = [index for index, call in enumerate(calls) if call.get("id") not in taken]
            free = chain(unnamed, count(len(calls)))
            complete["tool_calls"] = [
                {**call, "type": "function", "id": call_id(call.get("id"), index)} for index, call in enumerate(calls)
            ]
        else:
            calls, free = [], count()
        numbered.append(complete)
    return numbered


def call_id(identity: object, index: int) -> str:
    """Return the id where templates take it, else one made of the call's place within its turn.

    >>> call_id("abcdefghi", 0), call_id("call_12345678", 1)
    ('abcdefghi', 'call00001')
    """
    is_usable = (
        isinstance(identity, str) and len(identity) == CALL_ID_LENGTH and identity.isascii() and identity.isalnum()
    )
    return str(identity) if is_usable else f"call{index:05d}"
