"""Tool calls in JSON: a strict parser of values, the calls in them, and types of arguments by the tools' schemas."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn

CallFormat = Literal["deepseek", "glm", "hermes", "kimi", "llama", "mistral", "openai", "react", "xml"]
"""How a model writes its calls; the table is in `calls.py`."""
UNTYPED: tuple[CallFormat, ...] = ("glm", "xml")
"""Formats in which every argument is text."""

ParsedCall = tuple[str, dict[str, Any]]
"""Name of the tool, and the arguments by name."""

TEXT_ARGUMENT = "input"
"""Name of the argument that an `Action Input:` of plain text becomes."""
MAX_DEPTH = 100
"""Deepest nesting of objects and lists: a deeper value could not be serialised again."""
LONGEST_NAME = 60
"""Characters of a name or number that an error quotes, at most."""
TEXT_AFTER = "text stands after the JSON of a call: write nothing there"
TOO_DEEP = f"a call is no JSON: it is nested more than {MAX_DEPTH} deep"


class MalformedCall(ValueError):
    """A tool call that cannot be parsed; the message is one line for the model."""


def strict_json(text: str) -> Any:
    """Return the value of a JSON text that every reader understands alike.

    Raises:
        MalformedCall: it is no JSON, repeats a key, holds a number that is not finite or half a surrogate pair, or is
            nested too deep.
    """
    value, end = first_json(text, 0)
    if text[end:].strip():
        raise MalformedCall(TEXT_AFTER)
    return value


def _refuse_number(text: str) -> NoReturn:
    raise MalformedCall(f"a call is no JSON: {text[:LONGEST_NAME]} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse_number(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object; a repeated key is refused, as readers differ in which of its values counts."""
    value = dict[str, Any]()
    for key, item in pairs:
        if key in value:
            raise MalformedCall(f"a call is no JSON: the key {named(key)} is given twice")
        value[key] = item
    return value


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_number, object_pairs_hook=_object)
_SPACE = re.compile(r"\s*")
_SURROGATE = re.compile("[\ud800-\udfff]")


def first_json(text: str, start: int) -> tuple[Any, int]:
    """Return the JSON value that begins at `start`, and the index of its end; raises as `strict_json` does."""
    start = _SPACE.match(text, start).end()  # type: ignore[union-attr]  # matches anything
    try:
        value, end = _DECODER.raw_decode(text, start)
    except MalformedCall:
        raise
    except RecursionError:
        raise MalformedCall(TOO_DEEP) from None
    except ValueError:  # also an integer of more digits than Python reads
        raise MalformedCall('a call is no JSON: write {"name": ..., "arguments": {...}}') from None
    _check_values(value)
    return value, end


def _check_values(value: Any) -> None:
    """Refuse values that Python parses and could not serialise again: nested too deep, or half a surrogate pair."""
    level, depth = list[Any]([[value]]), 0  # objects and lists of one depth
    while level:
        if depth > MAX_DEPTH:
            raise MalformedCall(TOO_DEEP)
        items = [item for outer in level for item in ([*outer, *outer.values()] if isinstance(outer, dict) else outer)]
        if any(isinstance(item, str) and _SURROGATE.search(item) for item in items):
            raise MalformedCall("a call is no JSON: half a surrogate pair is no character")
        level, depth = [item for item in items if isinstance(item, dict | list)], depth + 1


def named(name: str) -> str:
    """Return a name as an error quotes it: in quotes, on one line, cut to `LONGEST_NAME`."""
    return json.dumps(name[:LONGEST_NAME], ensure_ascii=_SURROGATE.search(name) is not None)


def calls_of(value: object) -> list[ParsedCall]:
    """Return the calls of a record: one, a list of them, or `{"tool_calls": [...]}`.

    Raises:
        MalformedCall: a record is no call.
    """
    if isinstance(value, Mapping) and value.get("tool_calls") is not None:
        value = value["tool_calls"]
    return [call_of(record) for record in (value if isinstance(value, list | tuple) else [value])]


def _inner(value: object) -> object:
    """Return the value of `function` in `{"type": "function", "function": {...}}`; any other value as it is."""
    return value["function"] if isinstance(value, Mapping) and isinstance(value.get("function"), Mapping) else value


def call_of(value: object) -> ParsedCall:
    """Return the call of one record; see `calls_of`."""
    value = _inner(value)
    # Tables fill the keys that other rows have with None.
    arguments = [value[key] for key in _ARGUMENTS if value.get(key) is not None] if isinstance(value, Mapping) else []
    name = value.get("name") if isinstance(value, Mapping) else None
    if not isinstance(name, str) or not name.strip() or len(arguments) != 1:
        raise MalformedCall('a call is no object with "name" and "arguments"')
    text = arguments[0]
    if not isinstance(text, str):
        try:
            text = json.dumps(text)
        except (TypeError, ValueError, RecursionError):  # a Python object that a row of data holds
            text = "null"
    arguments = strict_json(text)
    if not isinstance(arguments, dict):
        raise MalformedCall(f"the arguments of {named(name)} are no JSON object")
    return name, arguments


_ARGUMENTS = ("arguments", "parameters")


def names_a_call(value: object) -> bool:
    """Return True if a JSON value looks like a call, well formed or not."""
    if isinstance(value, list):
        return any(map(names_a_call, value))
    inner = _inner(value)
    if not isinstance(inner, dict):
        return False
    return inner.get("tool_calls") is not None or ("name" in inner and any(key in inner for key in _ARGUMENTS))


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
