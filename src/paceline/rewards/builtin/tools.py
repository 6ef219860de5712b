"""Tool use: react_format, tool_call.

What is a call, and in which forms, stands in `paceline.chat.calls`; what makes a format valid stands in one
table for all styles, in `docs/rewards.md`.
"""

import json
from collections.abc import Mapping, Sequence

from paceline.chat.call_marks import CLOSE_CALL, OPEN_CALL, TOOL_CALLS, first_mark
from paceline.chat.call_records import UNTYPED, ParsedCall, calls_of, untyped
from paceline.chat.calls import call_format_in, labelled, parse_calls
from paceline.chat.messages import calls_in, is_empty, without_nulls, written_value
from paceline.chat.thinking import CLOSE_THINK, OPEN_THINK, prefill, prefills_think
from paceline.data.answers import stand_once_in_order
from paceline.errors import DataError, RewardError
from paceline.rewards.builtin.answers import JUNK, after_thought, form_alone, visible
from paceline.rewards.function import CHOOSE, BuiltIn, Need, RewardContext
from paceline.types import Message, Task


def gold_calls(answer: str | None, tool_calls: object) -> list[ParsedCall] | None:
    """Return the calls that a row asks for, from its column `tool_calls`, else its answer; None if neither has calls.

    Both may be text in one of the forms that `call_format_in` tells apart, or records, which are read as those in a
    message are (`calls_in`).

    Raises:
        RewardError: it does speak of calls, but cannot be read.
    """
    value = answer if is_empty(tool_calls) else tool_calls
    if value is None or (isinstance(value, str) and not speaks_of_calls(value)):
        return None
    try:
        records = value
        if isinstance(value, str) and value.lstrip()[:1] in ("{", "[") and not value.lstrip().startswith(TOOL_CALLS):
            records = written_value(value)
        if not isinstance(records, str):
            around = records if isinstance(records, Mapping) and records.get("tool_calls") is not None else None
            listed = [records] if isinstance(records, Mapping) else records
            return calls_of(calls_in(around or {"tool_calls": listed})) or None
        parsed = parse_calls(records, call_format_in(records), prefilled=False)
        if parsed.calls:
            return list(parsed.calls)
    except ValueError:  # MalformedCall and MessageError are such
        pass
    raise RewardError(
        f"the row asks for tool calls in no known form: {str(value)[:80]!r}; give a list of "
        '{"name": ..., "arguments": {...}}, as JSON'
    )


def speaks_of_calls(text: str | None) -> bool:
    """Return whether a text seems to contain tool calls, in any form."""
    return text is not None and (first_mark(text) is not None or "Action:" in text or text.lstrip()[:1] in ("{", "["))


def spelled(calls: Sequence[ParsedCall]) -> list[tuple[str, str]]:
    """Return name and arguments of each call in one spelling, sorted: keys in order, whole numbers without a point.

    An argument that is null is one that is not given: tables fill in the arguments that the calls of other rows have.
    """
    return sorted((name, _spelling(arguments)) for name, arguments in calls)


def _spelling(arguments: Mapping[str, object]) -> str:
    return json.dumps(json.loads(json.dumps(without_nulls(arguments)), parse_float=_number), sort_keys=True)


def are_same(calls: Sequence[ParsedCall], gold: Sequence[ParsedCall], *, is_untyped: bool) -> bool:
    """Return whether these are the calls that are asked for, in any order.

    `is_untyped`: they are of a form whose values are texts. Each is read as the type that its gold argument has: a text
    as it is, so that `1000` is not the text `1e3`, another value as the JSON that the text is.
    """
    if not is_untyped:
        return spelled(calls) == spelled(gold)
    left = sorted(calls, key=lambda call: call[0])
    for name, wanted in gold:
        for call in [call for call in left if call[0] == name]:
            typed = {
                key: untyped(value) if isinstance(value, str) and not isinstance(wanted.get(key), str) else value
                for key, value in call[1].items()
            }
            if _spelling(typed) == _spelling(wanted):
                left.remove(call)
                break
        else:
            return False
    return not left


def _number(text: str) -> float | int:
    value = float(text)
    return int(value) if value.is_integer() else value


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
    parts = labelled(rest)
    if not rest.startswith("Action:") or [label for label, _ in parts] != ["Action", "Action Input"]:
        return False
    (_, name), (_, argument) = parts
    return len(name.splitlines()) == 1 and argument != ""


def tool_call(context: RewardContext) -> BuiltIn:
    r"""Are these the calls that the row asks for? Same tools, same arguments, as `are_same` compares them.

    | completion                                                                   | score |
    |------------------------------------------------------------------------------|-------|
    | `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, all of the row's | 1.0   |
    | `<tool_call><function=...>...</function></tool_call>`, likewise              | 1.0   |
    | `Action: name`, `Action Input: {...}`, the last before an `Observation:`     | 1.0   |
    | nothing but JSON of the calls                                                | 1.0   |
    | `[TOOL_CALLS]name[ARGS]{...}`, `<\|python_tag\|>{...}`, also without the marks | 1.0   |
    | the marks of GLM, DeepSeek and Kimi, as in `chat.calls`                      | 1.0   |
    | another tool or argument, a call too few or too many                         | 0.0   |
    | a call that is malformed, a tag that is not closed, no call                  | 0.0   |
    | a row whose `tool_calls` and answer speak of no call                         | None  |

    In a conversation that has called tools, these calls are compared, those of all its turns.
    Thinking does not count. The row says what is asked for in its column `tool_calls`, or in its answer.
    Source: ms-swift's `toolbench`, whose rule for text that is no JSON can give nothing but 0.
    """

    def call(
        *,
        prompts: list[str],
        completions: list[str],
        answer: list[str | None],
        tool_calls: list[object] | None = None,
        completion_messages: list[list[Message]] | None = None,
        **columns: object,
    ) -> list[float | RewardError | None]:
        golds = [None] * len(prompts) if tool_calls is None else tool_calls
        messages = [[]] * len(prompts) if completion_messages is None else completion_messages
        return [_graded(*row) for row in zip(prompts, completions, messages, answer, golds, strict=True)]

    return BuiltIn(
        name="tool_call",
        call=call,
        need=CALLS,
        gold=_gold,
        junk=lambda task: (*JUNK, _WRONG_CALL, OPEN_CALL),
        check_row=_check_row,
        find=_stated_calls,
        is_formed=lambda *pair: _stated_calls(*pair) is not None,
    )


def has_calls(task: Task) -> bool:
    """Return whether a row says which tools are to be called, readable or not."""
    return speaks_of_calls(task.answer) or not is_empty(task.columns.get(COLUMN))


def unreadable_calls(tasks: Sequence[Task]) -> list[int]:
    """Return the positions of tasks whose tool calls cannot be read."""
    return [index for index, task in enumerate(tasks) if has_calls(task) and _gold(task) is None]


CALLS = Need(
    does="compares with tool calls",
    remedies=(
        "give them in the column tool_calls",
        "name their column with --answer-column",
        "choose another function",
    ),
    repairs=("correct these calls", CHOOSE),
    is_met=has_calls,
    doubtful=unreadable_calls,
)


def _check_row(columns: Mapping[str, object], row_id: str) -> None:
    try:
        gold_calls(None, columns.get(COLUMN))
    except RewardError as error:
        raise DataError(f"row {row_id}: column {COLUMN!r}: {error}") from error


def _stated_calls(prompt: str, completion: str) -> str | None:
    calls, _ = _called(prompt, completion, ())
    return "\n".join(f"{name} {arguments}" for name, arguments in spelled(calls)) or None


def _called(prompt: str, completion: str, messages: Sequence[Message]) -> tuple[list[ParsedCall], bool]:
    """Return the calls of a completion, or of all turns of a conversation; and True if their arguments are untyped."""
    recorded = [message["tool_calls"] for message in messages if "tool_calls" in message]
    if recorded:
        return [call for calls in recorded for call in calls_of(calls)], False
    call_format = call_format_in(visible(prompt, completion))
    parsed = parse_calls(completion, call_format, prefilled=prefills_think(prompt))
    return list(parsed.calls), call_format in UNTYPED


def _graded(
    prompt: str, completion: str, messages: Sequence[Message], answer: str | None, tool_calls: object
) -> float | RewardError | None:
    try:
        gold = gold_calls(answer, tool_calls)
    except RewardError as error:
        return error
    if gold is None:
        return None
    calls, is_untyped = _called(prompt, completion, messages)
    return float(are_same(calls, gold, is_untyped=is_untyped))


def _gold(task: Task) -> str | None:
    try:
        calls = gold_calls(task.answer, task.columns.get(COLUMN))
    except RewardError:
        return None
    if calls is None:
        return None
    stated = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    return after_thought(task, "".join(f"\n{OPEN_CALL}\n{call}\n{CLOSE_CALL}" for call in stated))
