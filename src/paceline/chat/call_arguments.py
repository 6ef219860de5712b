"""Types of the arguments of tool calls, by the JSON schemas of the tools."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.chat.call_records import (
    TEXT_ARGUMENT,
    UNTYPED,
    CallFormat,
    MalformedCall,
    ParsedCall,
    strict_json,
)

_Schema = Mapping[str, Any]

_IS_OF_TYPE: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, Mapping),
    "null": lambda value: value is None,
}
_PYTHON_NAMES = {"True": True, "False": False, "None": None}
"""What models of the format `xml` often write for `true`, `false` and `null`."""


def cast_by_schema(call: ParsedCall, schemas: Sequence[_Schema], call_format: CallFormat) -> ParsedCall:
    """Return the call with its arguments as the schema of its tool has them, where nothing is lost.

    | argument                                                      | becomes                          |
    |---------------------------------------------------------------|----------------------------------|
    | `3.0` for an integer, in any format                           | `3`                              |
    | text of `xml` or `glm` where the schema allows no text        | the JSON that it is              |
    | `True`, `False`, `None` of these, likewise                    | `true`, `false`, `null`          |
    | plain text of `react`, the tool has one argument              | that argument, then as for `xml` |

    Anything else stays as it is: the text `"3"` is no integer where a format has types, and the reward `tool_call` says
    so too. Schemas are those of chat templates, `{"type": "function", "function": {"name": ..., "parameters": ...}}`;
    `type`, `anyOf`, `oneOf` and `nullable` of each property are looked at. A part that JSON schemas do not have in
    this form says nothing: schemas are those of servers and requests.

    >>> square = {"name": "square", "parameters": {"properties": {"x": {"type": "integer"}}}}
    >>> [cast_by_schema(("square", {"x": "3"}), [square], call_format) for call_format in ("xml", "hermes")]
    [('square', {'x': 3}), ('square', {'x': '3'})]
    """
    name, arguments = call
    properties = properties_of(_parameters(schemas).get(name))
    is_text = call_format in UNTYPED
    if call_format == "react" and arguments.keys() == {TEXT_ARGUMENT} and len(properties) == 1:
        arguments, is_text = dict.fromkeys(properties, arguments[TEXT_ARGUMENT]), True
    return name, {
        argument: _cast(value, _types(properties[argument]), is_text=is_text) if argument in properties else value
        for argument, value in arguments.items()
    }


def _cast(value: Any, types: Sequence[str], *, is_text: bool) -> Any:
    read = untyped(value) if is_text and isinstance(value, str) and "string" not in types else value
    if isinstance(read, float) and read.is_integer() and "integer" in types and "number" not in types:
        read = int(read)
    # A schema without a type is often a reference to that of an object.
    return read if read is not value and is_one_of(read, types or ("array", "object")) else value


def untyped(text: str) -> Any:
    """Return the JSON that a text is, or else the text.

    >>> untyped("3"), untyped("True"), untyped("Oslo")
    (3, True, 'Oslo')
    """
    if text.strip() in _PYTHON_NAMES:
        return _PYTHON_NAMES[text.strip()]
    try:
        return strict_json(text)
    except MalformedCall:
        return text


def properties_of(schema: object) -> _Schema:
    """Return the properties of an object's schema; empty where it is no such schema."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def _parameters(schemas: Sequence[_Schema]) -> Mapping[str, object]:
    functions = [schema.get("function", schema) for schema in schemas]
    return {function["name"]: function.get("parameters") for function in functions}


def _types(schema: object) -> tuple[str, ...]:
    """Types that a schema allows; empty: it names none that is known here."""
    if not isinstance(schema, Mapping):
        return ()
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        if not isinstance(choices, list | tuple):
            return ()
        inner = [_types(choice) for choice in choices]
        types: tuple[object, ...] = tuple(dict.fromkeys(kind for each in inner for kind in each)) if all(inner) else ()
    else:
        listed = schema.get("type")
        types = tuple(listed) if isinstance(listed, list | tuple) else (listed,)
    known = tuple(kind for kind in types if isinstance(kind, str) and kind in _IS_OF_TYPE)
    if len(known) < len(types):
        return ()
    return (*known, "null") if known and schema.get("nullable") and "null" not in known else known


def is_one_of(value: Any, types: Sequence[str]) -> bool:
    """Return True if a value has one of these types, in JSON's words; any has, where none is named."""
    return not types or any(_IS_OF_TYPE[kind](value) for kind in types)
