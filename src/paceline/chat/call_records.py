"""Tool calls in JSON: a parser of values that every reader understands alike, and the calls in a parsed value."""

import json
import math
import re
from collections.abc import Mapping
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
