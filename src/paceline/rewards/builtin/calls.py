"""Tool calls as values: what a completion calls, what a row says should be called, and when the two are the same.

A call is a name and arguments. Arguments are compared as JSON values: the order of keys is free, `1` is `1.0` and not
`true`, `"1"` is text. Text that is no JSON is compared as text. Several calls are compared as a whole in any order,
since those of one message run side by side; each has to be there as often as the row has it.
"""

import json
import math
from collections.abc import Mapping
from typing import NoReturn

from paceline.data.extraction.actions import CLOSE_CALL, OPEN_CALL, last_action, tool_call_blocks
from paceline.errors import RewardError

Call = tuple[str, str]
"""Name, and arguments in one spelling."""


def called(text: str) -> list[Call] | None:
    """The calls of a visible text, sorted: all `<tool_call>`s, else the last `Action:`; None where one is malformed."""
    if OPEN_CALL in text or CLOSE_CALL in text:
        blocks = tool_call_blocks(text)
        found = [_call(_read(block)) for block in blocks or ()]
        return None if not found or None in found else sorted(call for call in found if call is not None)
    action = last_action(text)
    return None if action is None else [(action.name, _arguments(action.input))]


def gold_calls(answer: str | None, tool_calls: object) -> list[Call] | None:
    """The calls that a row asks for: its column `tool_calls`, else its answer; None where neither speaks of calls.

    Both may be what `called` reads, or JSON: one call or a list of them, `{"name": ..., "arguments": ...}` each, or
    the form of OpenAI's messages, `{"type": "function", "function": {...}}`, whose arguments are JSON text.

    Raises:
        RewardError: it does speak of calls, but cannot be read.
    """
    value = answer if tool_calls is None else tool_calls
    if value is None or (isinstance(value, str) and not speaks_of_calls(value)):
        return None
    listed = _read(value) if isinstance(value, str) else value
    if isinstance(listed, Mapping):
        listed = [listed]
    if isinstance(listed, list | tuple):
        found = [_call(one) for one in listed]
        if None not in found:
            return sorted(call for call in found if call is not None) or None
    calls = called(value) if isinstance(value, str) else None
    if calls is None:
        raise RewardError(
            f"the row asks for tool calls in no known form: {str(value)[:80]!r}; give a list of "
            '{"name": ..., "arguments": {...}}, as JSON'
        )
    return calls


def speaks_of_calls(text: str | None) -> bool:
    """Return whether a text means to give tool calls, in whichever form."""
    return text is not None and (OPEN_CALL in text or "Action:" in text or text.lstrip()[:1] in ("{", "["))


def _read(text: str) -> object:
    """The value of a JSON text; None for any other text."""
    spelling = _json(text)
    return None if spelling is None else json.loads(spelling)


def _call(value: object) -> Call | None:
    """A call from its JSON value; None where it is none."""
    if isinstance(value, Mapping) and isinstance(value.get("function"), Mapping):
        value = value["function"]
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str) or "arguments" not in value:
        return None
    arguments = value["arguments"]
    spelling = _json(arguments) if isinstance(arguments, str) else _spelling(arguments)
    return None if spelling is None else (value["name"], spelling)


def _arguments(text: str) -> str:
    """The text of `Action Input:` in one spelling, JSON or not."""
    spelling = _json(text)
    return f"text {text}" if spelling is None else spelling


def _spelling(value: object) -> str | None:
    """A JSON value in one spelling; None where it is none."""
    try:
        return _json(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        return None


def _json(text: str) -> str | None:
    """A JSON text in one spelling: keys in order, whole numbers without a point; None for any other text."""
    try:
        value = json.loads(text, parse_float=_number, parse_constant=_refuse, object_pairs_hook=_object)
        return json.dumps(value, sort_keys=True)
    except (ValueError, RecursionError):
        return None


def _number(text: str) -> float | int:
    value = float(text)
    if not math.isfinite(value):
        _refuse(text)
    return int(value) if value.is_integer() else value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object; what a tool would make of a key that is given twice is not known."""
    value = dict(pairs)
    if len(value) != len(pairs):
        _refuse("a repeated key")
    return value


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")
