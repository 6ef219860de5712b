"""Tool use: react_format, tool_call.

A call is ReAct's `Action:` and `Action Input:`, or `<tool_call>...</tool_call>`, the form of the Hermes and Qwen chat
templates: one JSON object per tag. What makes a format valid stands in one table for all styles, in `docs/rewards.md`.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn

from paceline.data.extraction.answers import stand_once_in_order
from paceline.data.extraction.thinking import CLOSE_THINK, OPEN_THINK, prefill
from paceline.errors import DataError, RewardError
from paceline.rewards.builtin.answers import JUNK, after_thought, form_alone, said
from paceline.rewards.function import BuiltIn, RewardContext
from paceline.types import Task

OPEN_CALL, CLOSE_CALL = "<tool_call>", "</tool_call>"

_LABEL = re.compile(r"^[ \t]*(Thought|Action Input|Action|Observation|Final Answer)[ \t]*:", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """One `Action:` with its `Action Input:`."""

    name: str
    """Text after `Action:`, stripped; not empty."""
    input: str
    """Text after `Action Input:`, up to the next label, stripped: JSON for most tools."""


def labels(text: str) -> list[str]:
    """Return the labels that start a line, in order: Thought, Action, Action Input, Observation, Final Answer."""
    return _LABEL.findall(text)


def actions(text: str) -> list[Action]:
    """Return every `Action:` directly followed by an `Action Input:`, up to the first `Observation:`, in order.

    What a model writes after `Observation:` it has made up itself: the tool has not been called yet.

    >>> actions('Thought: look it up\\nAction: search\\nAction Input: {"q": "42"}\\nObservation: none')
    [Action(name='search', input='{"q": "42"}')]
    """
    pieces = _LABEL.split(text)
    labelled = list(zip(pieces[1::2], pieces[2::2], strict=True))
    end = next((place for place, (label, _) in enumerate(labelled) if label == "Observation"), len(labelled))
    return [
        Action(name=name.strip(), input=content.strip())
        for (label, name), (following, content) in pairwise(labelled[:end])
        if label == "Action" and following == "Action Input" and name.strip()
    ]


def last_action(text: str) -> Action | None:
    """Return the last of the `actions`; None without one."""
    found = actions(text)
    return found[-1] if found else None


def tool_call_blocks(text: str) -> list[str] | None:
    """Return the content of each `<tool_call>...</tool_call>`, stripped; None if tags do not pair up.

    >>> tool_call_blocks('<tool_call>{"name": "f", "arguments": {}}</tool_call>')
    ['{"name": "f", "arguments": {}}']
    """
    before, *parts = text.split(OPEN_CALL)
    split = [part.partition(CLOSE_CALL) for part in parts]
    is_whole = CLOSE_CALL not in before and all(closed and CLOSE_CALL not in rest for _, closed, rest in split)
    return [content.strip() for content, _, _ in split] if is_whole else None


Call = tuple[str, str]  # Name, and arguments in one spelling


def called(text: str) -> list[Call] | None:
    """The calls of a visible text, sorted: all `<tool_call>`s, else the last `Action:`; None where one is malformed."""
    if OPEN_CALL in text or CLOSE_CALL in text:
        blocks = tool_call_blocks(text)
        found = [_call(_read(block)) for block in blocks or ()]
        return None if not found or None in found else sorted(call for call in found if call is not None)
    action = last_action(text)
    if action is None:
        return None
    spelling = _json(action.input)
    return [(action.name, f"text {action.input}" if spelling is None else spelling)]


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
    spelling = _json(text)
    return None if spelling is None else json.loads(spelling)


def _call(value: object) -> Call | None:
    if isinstance(value, Mapping) and isinstance(value.get("function"), Mapping):
        value = value["function"]
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str) or "arguments" not in value:
        return None
    arguments = value["arguments"]
    try:
        spelling = _json(arguments if isinstance(arguments, str) else json.dumps(arguments))
    except (TypeError, ValueError, RecursionError):
        return None
    return None if spelling is None else (value["name"], spelling)


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


COLUMN = "tool_calls"

_WRONG_CALL = '<tool_call>{"name": "no_such_tool", "arguments": {}}</tool_call>'


def react_format(context: RewardContext) -> BuiltIn:
    """`<think>...</think>`, then one `Action:` and one `Action Input:`, whatever they are.

    | completion                                                       | score |
    |------------------------------------------------------------------|-------|
    | `<think>...</think>`, `Action: search`, `Action Input: {}`       | 1.0   |
    | a tag or label missing, repeated, or out of order                | 0.0   |
    | text before `<think>`, or between `</think>` and `Action:`       | 0.0   |
    | an action without name or input; an `Observation:` of its own    | 0.0   |

    Each label starts a line. Where the prompt ends with `<think>`, the completion must not open it again.
    Source: ms-swift's function of this name, which accepts repeated tags and empty actions.
    """

    return form_alone(
        "react_format",
        is_react,
        gold=lambda task: after_thought(task, "\nAction: search\nAction Input: {}"),
        junk=lambda task: (*JUNK, "Action: search\nAction Input: {}", after_thought(task, "\nAction:\nAction Input:")),
    )


def is_react(prompt: str, completion: str) -> bool:
    """Return whether prefilled prompt and completion together are a thought and one action."""
    text = prefill(prompt).strip() + completion.strip()
    if not stand_once_in_order(text, (OPEN_THINK, CLOSE_THINK)) or not text.startswith(OPEN_THINK):
        return False
    rest = text.partition(CLOSE_THINK)[2].strip()
    action = last_action(rest)
    in_order = rest.startswith("Action:") and labels(rest) == ["Action", "Action Input"]
    return in_order and action is not None and len(action.name.splitlines()) == 1 and action.input != ""


def tool_call(context: RewardContext) -> BuiltIn:
    """Are these the calls that the row asks for? Same tools, same arguments, as `calls` compares them.

    | completion                                                                   | score |
    |------------------------------------------------------------------------------|-------|
    | `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, all of the row's | 1.0   |
    | `Action: name`, `Action Input: {...}`, the last before an `Observation:`     | 1.0   |
    | another tool or argument, a call too few or too many                         | 0.0   |
    | a call that is no JSON, a tag that is not closed, no call                    | 0.0   |
    | a row whose `tool_calls` and answer speak of no call                         | None  |

    Thinking does not count. The row says what is asked for in its column `tool_calls`, or in its answer.
    Source: ms-swift's `toolbench`, whose rule for text that is no JSON can give nothing but 0.
    """

    def call(
        *,
        prompts: list[str],
        completions: list[str],
        answer: list[str | None],
        tool_calls: list[object] | None = None,
        **columns: object,
    ) -> list[float | RewardError | None]:
        golds = [None] * len(prompts) if tool_calls is None else tool_calls
        return [_graded(*row) for row in zip(prompts, completions, answer, golds, strict=True)]

    return BuiltIn(
        name="tool_call",
        call=call,
        gold=_gold,
        junk=lambda task: (*JUNK, _WRONG_CALL, OPEN_CALL),
        check_row=_check_row,
        find=_stated_calls,
        is_formed=lambda *pair: _stated_calls(*pair) is not None,
    )


def has_calls(task: Task) -> bool:
    """Return whether a row says which tools are to be called, readable or not."""
    return speaks_of_calls(task.answer) or task.columns.get(COLUMN) is not None


def unreadable_calls(tasks: Sequence[Task]) -> list[int]:
    """Positions of the tasks whose tool calls are given in no form that can be read."""
    return [place for place, task in enumerate(tasks) if has_calls(task) and _gold(task) is None]


def _check_row(columns: Mapping[str, object], row_id: str) -> None:
    try:
        gold_calls(None, columns.get(COLUMN))
    except RewardError as error:
        raise DataError(f"row {row_id}: column {COLUMN!r}: {error}") from error


def _stated_calls(prompt: str, completion: str) -> str | None:
    calls = called(said(prompt, completion))
    return None if calls is None else "\n".join(f"{name} {arguments}" for name, arguments in calls)


def _graded(prompt: str, completion: str, answer: str | None, tool_calls: object) -> float | RewardError | None:
    try:
        gold = gold_calls(answer, tool_calls)
    except RewardError as error:
        return error
    return None if gold is None else float(called(said(prompt, completion)) == gold)


def _gold(task: Task) -> str | None:
    try:
        calls = gold_calls(task.answer, task.columns.get(COLUMN))
    except RewardError:
        return None
    if calls is None:
        return None
    stated = [
        f"Action: {name}\nAction Input: {arguments.removeprefix('text ')}"
        if arguments.startswith("text ")
        else f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'
        for name, arguments in calls
    ]
    return after_thought(task, "\n" + "\n".join(stated))
