"""Messages and tools in the one form in which they are rendered, whoever writes them: rows, trainers and requests.

A message holds text (`content_text`), or where the model sees parts of text and images (`content_parts`); a part of
another kind is refused.

| as it is written                                                | as it is read                                   |
|-----------------------------------------------------------------|-------------------------------------------------|
| a text, or a list of parts of type `text`                       | the text; parts are joined                      |
| parts of type `image`, `image_url` and `input_image`            | parts of type `image`, with the image if there  |
| messages as JSON text, or as Python prints them                 | the messages                                    |
| a call's arguments as text, in JSON or as Python prints them    | an object: a template would encode a text again |
| a call without `function` around its name and arguments         | with it                                         |
| `function_call`, as OpenAI's first interface had it             | the one call of `tool_calls`                    |
| JSON schemas of tools, of functions alone, or as text           | `{"type": "function", "function": {...}}`       |
"""

import ast
import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from paceline.errors import DataError

ROLES = ("system", "developer", "user", "assistant", "tool")
CALL_KEYS = ("tool_calls", "function_call")
"""Keys of a message that hold calls."""
TEXT_PARTS = ("text", "input_text", "output_text")
IMAGE_PARTS = ("image", "image_url", "input_image")
IMAGE_KEYS = ("image", "image_url", "url", "path", "base64", "bytes")
"""Keys of a part under which its image may be; a part without them says where an image stands."""
MOST_SHOWN = 60  # Characters of a wrong value in an error
MOST_DEPTH = 64
"""Objects and lists within each other, at most: whoever reads or shows them calls itself for each."""
LONGEST_PYTHON = 1_000_000
"""Characters of a text that is read as Python's spelling of a value, at most."""

_QUOTE = r"""\\*['"]"""
_ROLE = re.compile(rf"{_QUOTE}(?:role|from){_QUOTE}\s*:")
_CONTENT = re.compile(rf"{_QUOTE}(?:content|value|tool_calls){_QUOTE}\s*:")


class MessageError(ValueError):
    """A part of a message that cannot be read: `part` is its place within the message, `rule` a sentence without it."""

    def __init__(self, part: str, rule: str) -> None:
        super().__init__(f"{part} {rule}")
        self.part, self.rule = part, rule


def content_text(value: object, *, may_be_none: bool = False) -> str:
    """Return the text of a message's content.

    Raises:
        MessageError: it is neither text nor a list of parts of text.
    """
    if isinstance(value, str) or (value is None and may_be_none):
        return value or ""
    parts: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(part, Mapping) or kind not in TEXT_PARTS or not isinstance(part.get("text"), str):
            rule = f"must be a text or a list of parts of type text, got {shown(part)}; the model reads text alone"
            raise MessageError("content", rule)
    return "".join(part["text"] for part in parts)


def content_parts(value: object, *, may_be_none: bool = False) -> str | list[dict[str, object]]:
    """Return content with images as parts, other content as text.

    Parts are `{"type": "text", "text": ...}` and `{"type": "image"}`; one that holds its image has it under `image`, as
    it was written.

    Raises:
        MessageError: it is neither text nor a list of parts of text and images.
    """
    value = plain_value(value)
    if not isinstance(value, list | tuple) or not any(map(is_image_part, value)):
        return content_text(value, may_be_none=may_be_none)
    parts = list[dict[str, object]]()
    for part in value:
        if not is_image_part(part):
            parts.append({"type": "text", "text": content_text([part])})
            continue
        image = next((part[key] for key in IMAGE_KEYS if part.get(key) is not None), None)
        parts.append({"type": "image"} if image is None else {"type": "image", "image": image})
    return parts


def is_image_part(part: object) -> bool:
    """Return True for a part of a message's content that is an image, or says where one stands."""
    return isinstance(part, Mapping) and part.get("type") in IMAGE_PARTS


def texts_in(value: object) -> list[str]:
    """Return all texts of a message, of its content or of another value, with those inside lists and objects."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [text for each in inner for text in texts_in(each)]


def calls_in(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a message's tool calls, the arguments of each as an object; none where it has no calls.

    They are its `tool_calls`, or the one of its `function_call`.

    Raises:
        MessageError: they are no list of calls with a name and an object of arguments.
    """
    calls: Any = _written("tool_calls", message)
    if single := _written("function_call", message):
        if calls:
            raise MessageError("function_call", "must not stand beside tool_calls; keep one of the two")
        calls = [single]
    are_objects = isinstance(calls, list | tuple) and all(isinstance(call, Mapping) for call in calls)
    if not are_objects or not all(isinstance(call.get("id"), str | None) for call in calls):
        rule = f"must be a list of objects, an id of which is a text, got {shown(calls)}"
        raise MessageError("tool_calls", rule)
    return [_call(call, f"tool_calls[{index}].function") for index, call in enumerate(calls)]


def _written(key: str, message: Mapping[str, Any]) -> Any:
    """The value of a key, which may be stored as text; an empty list where it is null or empty."""
    value = plain_value(message.get(key))
    if isinstance(value, str):
        try:
            value = written_value(value) if value.strip() else []
        except ValueError as error:
            raise MessageError(key, f"must hold objects, got {shown(value)}") from error
    return value or []


def _call(call: Mapping[str, Any], part: str) -> dict[str, Any]:
    inner = call.get("function")
    function = call if inner is None and "name" in call else inner
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise MessageError(part, f"must have a name and arguments, got {shown(function)}")
    arguments = function.get("arguments") or function.get("parameters") or {}
    try:
        known_arguments = _arguments(arguments) if isinstance(arguments, str) else arguments
    except ValueError as error:
        raise MessageError(f"{part}.arguments", f"must be a JSON object in a text ({error})") from error
    if not isinstance(known_arguments, Mapping):
        raise MessageError(f"{part}.arguments", f"must be a JSON object in a text, got {shown(known_arguments)}")
    known = dict(known_arguments) if isinstance(arguments, str) else without_nulls(known_arguments)
    rest = {
        key: value for key, value in call.items() if key not in ("function", "name", "arguments", "parameters", "type")
    }
    return {"type": "function", **rest, "function": {"name": name, "arguments": known}}


def _arguments(text: str) -> Any:
    """Arguments that are stored as text; those that Python printed pass through JSON, whose rules hold for them too."""
    if not text.strip():
        return {}
    try:
        return parsed_json(text)
    except ValueError as error:
        try:
            return parsed_json(json.dumps(written_value(text)))
        except (ValueError, TypeError, RecursionError):
            raise error from None


def joined_parts(value: object) -> object:
    """Return the text of parts of text, stored as a list, as one object or as text of these; any other value as it is.

    >>> joined_parts('{"type": "text", "text": "Hi"}'), joined_parts('{"text": 1}')
    ('Hi', '{"text": 1}')

    Raises:
        MessageError: a part has no text.
    """
    value = parts = plain_value(value)
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{") and '"text"' in value.replace("'", '"'):
        try:
            parts = written_value(value)
        except ValueError:
            return value
    listed = [parts] if isinstance(parts, Mapping) else parts
    are_parts = isinstance(listed, list | tuple) and all(
        isinstance(part, Mapping) and part.get("type") in TEXT_PARTS for part in listed
    )
    return content_text(parts) if are_parts and listed else value


def unpacked(value: object) -> object:
    """Return the messages that a text holds as JSON or as Python prints them; any other value as it is.

    Arrays of numpy, which pandas makes of a list in a parquet file, become lists.

    >>> unpacked("[{'role': 'user', 'content': 'Hi'}]"), unpacked('[1, 2]')
    ([{'role': 'user', 'content': 'Hi'}], '[1, 2]')

    Raises:
        MessageError: the text looks like messages, and cannot be read.
    """
    if not isinstance(value, str):
        return plain_value(value)
    text = value.strip()
    if not text.startswith((*"[{(\"'", "array(")) or not _ROLE.search(text) or not _CONTENT.search(text):
        return value
    try:
        read = written_value(text)
    except ValueError as error:
        if not text.endswith((*"]})\"'",)):
            return value
        rule = f"is text that looks like messages, {shown(text)}, and cannot be read as JSON; store it as a list"
        raise MessageError("", rule) from error
    return read if has_messages(read) else value


def plain_value(value: object) -> object:
    """Return an array of numpy as a list, a number of numpy as Python's; any other value as it is."""
    return value.tolist() if type(value).__module__ == "numpy" and hasattr(value, "tolist") else value


def has_messages(value: object) -> bool:
    """Return True for what means to be a message, a list of them or an object around one, usable or not."""
    if isinstance(value, Mapping) and value.keys() <= {"messages", "conversation", "conversations"}:
        (value,) = value.values() or [None]
    return any(map(_means_message, value if isinstance(value, list | tuple) else [value]))


def _means_message(value: object) -> bool:
    return isinstance(value, Mapping) and (
        {"from", "value"} <= value.keys()
        or ("role" in value and not value.keys().isdisjoint(("content", "tool_calls")))
    )


def written_value(text: str) -> Any:
    """Return the value that a text is in JSON, perhaps twice encoded, or as Python prints it.

    Raises:
        ValueError: it is neither.
    """
    try:
        read = json.loads(text)
        return json.loads(read) if isinstance(read, str) else read
    except (ValueError, RecursionError):
        pass
    if len(text) > LONGEST_PYTHON:
        raise ValueError("is no JSON")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of backslashes that mean nothing
            return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError("is neither JSON nor a value as Python prints it") from error


def row_tools(columns: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
    """Return the JSON schemas in the column `tools` of a row; none where it holds something else.

    Raises:
        DataError: it holds schemas, of which one has no name.
    """
    value = plain_value(columns.get("tools"))
    if isinstance(value, str) and value.strip()[:1] in ("[", "{", '"'):
        try:
            value = written_value(value)
        except ValueError as error:
            raise DataError(
                f"column 'tools' holds {shown(value)}, which is no JSON; write a list of the tools' JSON schemas, or "
                "rename the column if it means something else"
            ) from error
    listed = [value] if isinstance(value, Mapping) else value
    if not isinstance(listed, list | tuple):
        return ()
    tools = [_written_schema(tool) for tool in listed if tool is not None]
    if not any(isinstance(tool, Mapping) for tool in tools):
        return ()
    return [_schema(tool, number) for number, tool in enumerate(tools, start=1)]


def _written_schema(tool: object) -> object:
    if not isinstance(tool, str) or not tool.lstrip().startswith("{"):
        return tool
    try:
        return written_value(tool)
    except ValueError:
        return tool


def _schema(tool: object, number: int) -> Mapping[str, object]:
    plain = without_nulls(tool)
    function = plain.get("function", plain) if isinstance(plain, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise DataError(
            f"column 'tools': tool {number} must be a JSON schema with a name, got {shown(tool)}; write "
            '{"type": "function", "function": {"name": ..., "parameters": {...}}}'
        )
    inner = {key: value for key, value in function.items() if key != "type"} if function is plain else dict(function)
    for key in ("parameters", "input_schema"):
        if isinstance(inner.get(key), str):
            inner[key] = without_nulls(_written_schema(inner[key]))
    if "parameters" not in inner:
        inner["parameters"] = inner.pop("input_schema", None) or {"type": "object", "properties": {}}
    return {"type": "function", "function": inner}


def without_nulls(value: object) -> Any:
    """Return a value whose objects lack the keys that are null: tables fill in those that other rows have."""
    if isinstance(value, Mapping):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    value = plain_value(value)
    return [without_nulls(inner) for inner in value] if isinstance(value, list | tuple) else value


def is_empty(value: object) -> bool:
    """Return True for a cell without a value: null, nan, an empty text, or a list of such."""
    value = plain_value(value)
    if isinstance(value, list | tuple):
        return all(map(is_empty, value))
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def shown(value: object) -> str:
    """Return a wrong value for an error, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def parsed_json(text: str | bytes) -> Any:
    """Read JSON whose numbers are finite and whose values are not nested deeply; raises ValueError."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError as error:
        raise ValueError(f"it is nested deeper than {MOST_DEPTH}") from error
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return value
    raise ValueError(f"it is nested deeper than {MOST_DEPTH}")


def _inside(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is beyond all numbers")
    return value


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and infinities, which Python reads in JSON and nobody else does."""
    raise ValueError(f"{name} is no JSON")
