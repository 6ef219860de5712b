"""Tools: functions that a model calls, and the environment that calls them.

| the turn                                     | what the environment says, one message per call                    |
|----------------------------------------------|--------------------------------------------------------------------|
| has no call                                  | nothing: the episode is done                                       |
| is the last that the episode may have        | nothing, and no tool runs; the episode is not done                 |
| has a call that cannot be read               | `Error: the tool call cannot be read: REASON`; no tool runs        |
| calls a tool that there is not               | `Error: there is no tool 'NAME'; the tools are A, B`               |
| leaves out an argument that has no default   | `Error: NAME needs the argument 'X'`                               |
| gives an argument that the tool has not      | `Error: NAME has no argument 'X'; its arguments are A, B`          |
| gives an argument of another type            | `Error: NAME needs 'X' to be of type integer, got "3"`             |
| calls a tool that raises `CallError`         | its text                                                           |
| calls a tool that raises another exception   | `Error: NAME failed: TYPE: first line of its message`              |
| calls a tool that raises one of `FAILURES`   | nothing: the environment has failed, which is not the model's doing |
| calls a tool that returns a text             | the text                                                           |
| calls a tool that returns something else     | it as JSON; what JSON does not know is a failure                   |

The model reads errors, to learn from them, and they count as failed calls. A text such as
`<object at 0x7f...>` loses its address, which would differ in each run.
"""

import asyncio
import inspect
import json
import re
import types
import typing
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

from paceline.chat.call_records import is_one_of
from paceline.chat.tools import call_id
from paceline.environments import AgentTurn, Observation, ToolCall
from paceline.errors import EnvironmentFailure, PacelineError
from paceline.runtime.shown_text import hidden

SHOWN_NAME, SHOWN_VALUE, SHOWN_ERROR = 60, 60, 300  # Characters of a model's or a tool's own words in an error

FAILURES = (PacelineError, ConnectionError, TimeoutError, MemoryError)
"""Exceptions by which a tool says that something else than its arguments is wrong."""


class CallError(Exception):
    """Result of a call that went wrong: the model reads its text, and the call counts as failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """A function that a model may call, and the arguments that it takes."""

    name: str
    call: Callable[..., Any]
    """Called with the arguments as keywords; a plain function or `async def`."""
    arguments: tuple[str, ...] | None = None
    """Names of its arguments; None: it checks them itself."""
    required: tuple[str, ...] = ()
    """Names of those that must be given."""
    kinds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Types in JSON's words that an argument may have; it may have any where there is no entry."""

    @property
    def is_async(self) -> bool:
        """True if calling it gives something to wait for."""
        return inspect.iscoroutinefunction(self.call)


class Toolset(Protocol):
    """Tools of one episode, and what they share: an interpreter, a connection."""

    tools: Sequence[Tool]
    """Known from the episode's start on."""

    def begin(self, seed: int) -> None:
        """Start an episode."""

    def close(self) -> None:
        """End it; may be called while a tool runs."""


class Functions:
    """`Toolset` of plain functions, which share nothing."""

    def __init__(self, functions: Iterable[Callable[..., Any]]) -> None:
        self.tools: Sequence[Tool] = [tool(function) for function in functions]

    def begin(self, seed: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def tool(function: Callable[..., Any]) -> Tool:
    """Make a tool of a function whose arguments have types; it has the function's name.

    >>> def add(a: int, b: float | None = None) -> float: ...
    >>> made = tool(add)
    >>> made.name, made.required, dict(made.kinds)
    ('add', ('a',), {'a': ('integer',), 'b': ('number', 'null')})
    """
    parameters = inspect.signature(function).parameters
    hints = typing.get_type_hints(function)
    words = {name: tuple(_words(hints[name])) for name in parameters if name in hints}
    return Tool(
        name=function.__name__,
        call=function,
        arguments=tuple(parameters),
        required=tuple(name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty),
        kinds={name: of_type for name, of_type in words.items() if of_type},
    )


_WORDS = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"} | {
    list: "array",
    tuple: "array",
    dict: "object",
}


def _words(hint: object) -> Iterator[str]:
    """Yield JSON's words for a type; nothing if any value may be right."""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        inner = [list(_words(member)) for member in typing.get_args(hint)]
        if all(inner):
            yield from (word for words in inner for word in words)
        return
    plain = hint if origin is None else origin
    if isinstance(plain, type) and plain in _WORDS:
        yield _WORDS[plain]


def problem(tool: Tool, arguments: Mapping[str, Any]) -> str | None:
    """Return the line that says what is wrong with the arguments; None if they may be given to the tool."""
    for name in tool.required:
        if name not in arguments:
            return f"Error: {tool.name} needs the argument {name!r}"
    for name, value in arguments.items():
        if tool.arguments is not None and name not in tool.arguments:
            known = f"its arguments are {', '.join(tool.arguments)}" if tool.arguments else "it has none"
            return f"Error: {tool.name} has no argument {name[:SHOWN_NAME]!r}; {known}"
        words = tool.kinds.get(name, ())
        if not is_one_of(value, words):
            text = json.dumps(value, ensure_ascii=False, default=str)[:SHOWN_VALUE]
            return f"Error: {tool.name} needs {name!r} to be of type {' or '.join(words)}, got {text}"
    return None


_ADDRESS = re.compile(r"(<[^<>\n]*) at 0x[0-9a-fA-F]{6,16}(?=>)")


def result_text(value: object) -> str:
    """Return the text of a tool's result: the same in every run and on every machine.

    >>> result_text("é"), result_text({"b": 0.1, "a": [1, None, "é"]}), result_text("<A object at 0x7f2b00c4d0>")
    ('é', '{"b": 0.1, "a": [1, null, "é"]}', '<A object>')

    Raises:
        TypeError: it is neither a text nor JSON: a set, an object of a class.
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _ADDRESS.sub(r"\1", text)


class FixedTools:
    """`Environment` of a class with `tools`, of which the model is told at the start of a conversation.

    An object that has others then, or by and by, is refused at its next observation: the model would not know of them.
    """

    def __init__(self, make: Callable[[], Any], told: str) -> None:
        """`told`: the `tools_text` of what the class has."""
        self._inner, self._told = make(), told

    def begin(self, task: Mapping[str, Any], seed: int) -> Any:
        """Start an episode of the inner environment."""
        return self._inner.begin(task, seed)

    def observe(self, turn: AgentTurn) -> Observation | Awaitable[Observation]:
        """Return what the inner environment says.

        Raises:
            EnvironmentFailure: its tools are others by now.
        """
        if tools_text(self._inner.tools) != self._told:
            raise EnvironmentFailure(
                f"{type(self._inner).__name__} has other `tools` than its class, but the model was told of those; "
                "leave them as they are, and say in the result of a call that it cannot be made now"
            )
        observation: Observation | Awaitable[Observation] = self._inner.observe(turn)
        return observation

    def close(self) -> Any:
        """End the inner environment's episode."""
        return self._inner.close()


def tools_text(tools: Any) -> str:
    """Return schemas of tools as JSON, and functions by their names.

    >>> tools_text([print, {"a": 1}])
    '["print", {"a": 1}]'
    """
    return json.dumps(tools, default=lambda value: getattr(value, "__name__", type(value).__name__))


@dataclass(frozen=True, slots=True)
class _CallResult:
    text: str
    failed: bool = False


class ToolEnvironment:
    """Environment that carries out the calls of each turn, and is done at a turn without one. It gives no reward.

    Calls run in order; neighbours that are `async def` run together. Results come in the order of the calls.
    """

    def __init__(self, toolsets: Sequence[Toolset], wait: Callable[[Awaitable[Any]], Any] | None = None) -> None:
        """`wait`: waits in this thread for async calls; None: the caller awaits the observation."""
        self._toolsets, self._wait = tuple(toolsets), wait
        self._tools: Mapping[str, Tool] = {}

    def begin(self, task: Mapping[str, Any], seed: int) -> None:
        """Start an episode of every toolset; nothing is added to the prompt."""
        for toolset in self._toolsets:
            toolset.begin(seed)
        self._tools = {tool.name: tool for toolset in self._toolsets for tool in toolset.tools}

    def observe(self, turn: AgentTurn) -> Observation | Awaitable[Observation]:
        """Carry out the calls of a turn, as the table at the top of this file says."""
        if not turn.calls and turn.malformed is None:
            return Observation(done=True)
        if turn.is_last:
            return Observation()
        if turn.malformed is not None:
            line = f"Error: the tool call cannot be read: {turn.malformed}"
            return Observation(messages=(_message(0, "unknown", line),), calls=1, failed_calls=1)
        if self._wait is None and any(self._is_async(call) for call in turn.calls):
            return self._observe_async(turn)
        results = list[_CallResult]()
        for is_async, calls in groupby(turn.calls, key=self._is_async):
            if is_async and self._wait is not None:
                results += self._wait(self._carried_out_together([*calls]))
            else:
                results += [self._carried_out(call) for call in calls]
        return _observation(turn.calls, results)

    def close(self) -> None:
        """End every toolset's episode, also if one of them fails to."""
        with ExitStack() as stack:
            for toolset in self._toolsets:
                stack.callback(toolset.close)

    async def _observe_async(self, turn: AgentTurn) -> Observation:
        results = list[_CallResult]()
        for is_async, calls in groupby(turn.calls, key=self._is_async):
            if not is_async:
                results += [self._carried_out(call) for call in calls]
                continue
            results += await self._carried_out_together([*calls])
        return _observation(turn.calls, results)

    async def _carried_out_together(self, calls: Sequence[ToolCall]) -> list[_CallResult]:
        results = list[_CallResult]()
        for result in await asyncio.gather(*map(self._carried_out_async, calls), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            results.append(result)
        return results

    def _is_async(self, call: ToolCall) -> bool:
        return call.name in self._tools and self._tools[call.name].is_async

    def _carried_out(self, call: ToolCall) -> _CallResult:
        if (line := self._refusal(call)) is not None:
            return _CallResult(line, failed=True)
        try:
            result = self._tools[call.name].call(**call.arguments)
        except Exception as error:  # noqa: BLE001 (the border to tools of others)
            return _told(call.name, error)
        return _CallResult(result_text(result))

    async def _carried_out_async(self, call: ToolCall) -> _CallResult:
        if (line := self._refusal(call)) is not None:
            return _CallResult(line, failed=True)
        try:
            result = await self._tools[call.name].call(**call.arguments)
        except Exception as error:  # noqa: BLE001 (the border to tools of others)
            return _told(call.name, error)
        return _CallResult(result_text(result))

    def _refusal(self, call: ToolCall) -> str | None:
        if call.name not in self._tools:
            return f"Error: there is no tool {call.name[:SHOWN_NAME]!r}; the tools are {', '.join(self._tools)}"
        return problem(self._tools[call.name], call.arguments)


def _told(name: str, error: Exception) -> _CallResult:
    """Return what the model reads of an exception; raises it if it is none of the model's doing."""
    if isinstance(error, FAILURES):
        raise error
    if isinstance(error, CallError):
        return _CallResult(result_text(str(error)), failed=True)
    first = hidden(next(iter(str(error).strip().splitlines()), ""))[:SHOWN_ERROR]
    sentence = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return _CallResult(result_text(f"Error: {name} failed: {sentence}"), failed=True)


def _observation(calls: Sequence[ToolCall], results: Sequence[_CallResult]) -> Observation:
    pairs = enumerate(zip(calls, results, strict=True))
    messages = tuple(_message(index, call.name, result.text) for index, (call, result) in pairs)
    failed = sum(result.failed for result in results)
    return Observation(messages=messages, calls=len(results), failed_calls=failed)


def _message(index: int, name: str, text: str) -> Mapping[str, object]:
    return {"role": "tool", "name": name, "tool_call_id": call_id(None, index), "content": text}
