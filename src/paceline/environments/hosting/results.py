"""What the methods of an environment may return, and what is said of what they raise."""

import dataclasses
import inspect
import json
import math
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Mapping, Sequence
from numbers import Real
from typing import Any, Literal

from paceline.environments import AgentTurn, ModelRequest, Observation
from paceline.errors import PacelineError
from paceline.processes.forking import Result, plain
from paceline.processes.starting import HostFailure
from paceline.runtime.own_code import BlockedLoop, copied
from paceline.runtime.shown_text import hidden

Method = Literal["begin", "observe", "close"]

MOST_BYTES = 1 << 20
"""Bytes of an observation, at most: its messages as JSON."""
MOST_DESCRIBED = 500  # Characters of an exception's message, at most
FIELDS = {field.name for field in dataclasses.fields(Observation)}
REQUEST_FIELDS = {field.name for field in dataclasses.fields(ModelRequest)}
"""Fields of a request, all of which it has when it comes from another process."""
NEEDS_OBSERVATION = (
    "but must return an Observation (messages, reward, done) or a dict with its fields; "
    'wrap a text: Observation(messages=({"role": "user", "content": text},))'
)
NEEDS_OPENING = (
    "but must return text to add to the last message of the prompt, a list of messages to add, or None; "
    "make another value text"
)


class WrongResult(Exception):
    """Value that a method of an environment must not return, in one sentence."""


class TooLate(Exception):
    """The call took more than its seconds; a sentence says what else held it up, where something did."""


class Overtime(BaseException):
    """The call took longer than it may. No `Exception`: code that swallows those must not swallow this."""


def checked(name: str, method: Method, value: Any) -> Any:
    """Return what a method of the environment `name` returned, as plain values that nobody else holds.

    `begin`: text, a tuple of messages, a ModelRequest, or None; `observe`: an Observation; `close`: a number or None.

    Raises:
        WrongResult: it is none of these, or too large.
    """
    if value is None and method != "observe":
        return None
    start = f"{name}.{method} returned"
    if method == "observe":
        return _observation(start, value)
    if method == "close":
        return _number(start, value)
    if isinstance(value, str):
        _bounded(start, value)
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return _messages(start, value)
    if isinstance(value, ModelRequest) or (isinstance(value, dict) and value.keys() == REQUEST_FIELDS):
        return _request(start, value)
    raise WrongResult(f"{start} a value of type {type(value).__name__}, {NEEDS_OPENING}")


def _observation(start: str, value: Any) -> Observation:
    if not isinstance(value, Observation):
        if not isinstance(value, Mapping):
            raise WrongResult(f"{start} a value of type {type(value).__name__}, {NEEDS_OBSERVATION}")
        if unknown := [str(field) for field in value if field not in FIELDS]:
            raise WrongResult(f"{start} a dict with the unknown field {unknown[0]!r}, {NEEDS_OBSERVATION}")
        value = Observation(**value)
    messages, reward, done = value.messages, value.reward, value.done
    calls, failed_calls = value.calls, value.failed_calls
    if done not in (True, False):
        raise WrongResult(f"{start} {done!r:.50} as `done`, but it must be True or False")
    is_sequence = isinstance(messages, (tuple | list, Sequence))
    if not is_sequence or isinstance(messages, str | bytes):
        raise WrongResult(f"{start} `messages` of type {type(messages).__name__}, {NEEDS_OBSERVATION}")
    for count in (calls, failed_calls):
        if not isinstance(count, int) or count < 0:
            raise WrongResult(f"{start} {count!r:.50} as a number of calls, but it must be a whole number from 0 on")
    is_fixed = messages == () and reward is None and value.request is None
    if is_fixed and type(done) is bool and type(value) is Observation:
        return value  # nothing in it can be changed
    return Observation(
        messages=_messages(start, messages),
        reward=None if reward is None else _number(start, reward),
        done=bool(done),
        calls=calls,
        failed_calls=failed_calls,
        request=None if value.request is None else _request(start, value.request),
    )


def _request(start: str, value: ModelRequest | Mapping[str, Any]) -> ModelRequest:
    """Return a request that no other object holds parts of; its messages and tools together are within bounds."""
    request = value if isinstance(value, ModelRequest) else ModelRequest(**value)
    try:
        tools = json.dumps([*request.tools, request.settings], ensure_ascii=False, default=plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise WrongResult(f"{start} tools that cannot be written as JSON ({error}); make their parts text") from error
    _bounded(start, f"{tools}{request.text or ''}")
    *tools, settings = json.loads(tools)
    return dataclasses.replace(
        request, messages=_messages(start, request.messages), tools=tuple(tools), settings=settings
    )


def _messages(start: str, messages: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    if not messages:
        return ()
    for message in messages:
        is_mapping = isinstance(message, Mapping)
        if not is_mapping or not isinstance(message.get("role"), str) or message.get("content") is None:
            raise WrongResult(
                f"{start} a message that is {message!r:.50}, but a message must be a dict with `role` and `content`; "
                'wrap a text: {"role": "user", "content": text}'
            )
    messages = [{**message, "content": _text_of_parts(start, message["content"])} for message in messages]
    try:
        text = json.dumps(messages, ensure_ascii=False, default=plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise WrongResult(f"{start} a message that cannot be written as JSON ({error}); make its parts text") from error
    _bounded(start, text)
    return tuple(json.loads(text))


def _text_of_parts(start: str, content: Any) -> Any:
    """Return the text of content that comes in parts, as chat servers send it, and other content as it is."""
    is_list = isinstance(content, list | tuple) and len(content) > 0
    if not is_list or not all(isinstance(part, Mapping) and isinstance(part.get("type"), str) for part in content):
        return content
    for part in content:
        if part["type"] != "text" or not isinstance(part.get("text"), str):
            raise WrongResult(f"{start} a message with a part of type {part['type']!r:.50}, but only text can be read")
    return "".join(part["text"] for part in content)


def _bounded(start: str, text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise WrongResult(f"{start} text that is no Unicode ({error.reason}); decode with errors='replace'") from error
    if size > MOST_BYTES:
        raise WrongResult(f"{start} {size} bytes, at most {MOST_BYTES} are allowed; shorten what it says")


def _number(start: str, value: Any) -> float:
    if not isinstance(value, Real):
        kind = type(value).__name__
        raise WrongResult(f"{start} a reward of type {kind}, but it must be a number or None; convert it by float()")
    if not math.isfinite(value):
        raise WrongResult(f"{start} the reward {float(value)}, but it must be finite; return None where there is none")
    return float(value)


def described(error: BaseException) -> str:
    """Return the type of an exception and the first line of its message, within bounds."""
    kind = type(error).__name__
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # noqa: BLE001 - the message is made by code of the environment, as in `attempt`
        lines = []
    text = hidden(f"{kind}: {lines[0]}") if lines else kind
    return text[:MOST_DESCRIBED].encode(errors="backslashreplace").decode()


# The border: whatever the code of an environment raises is a failure of its episode, counted, and not fatal.


def attempt(function: Callable[..., Any], *arguments: Any) -> Result:
    """Call code of an environment: its result and None, or None and a sentence of what it raised.

    Raises:
        TooLate: it has a deadline of its own, and took longer.
    """
    try:
        return function(*arguments), None
    except TooLate:
        raise
    except (WrongResult, HostFailure, PacelineError) as error:
        return None, hidden(str(error))
    except (Exception, SystemExit, CancelledError) as error:  # noqa: BLE001 - the border
        return None, described(error)


async def attempt_async(awaitable: Awaitable[Any], check: Callable[[Any], Any]) -> Result:
    """Await what code of an environment returned and check the result; returns what `attempt` does."""
    try:
        return check(await awaitable), None
    except (WrongResult, HostFailure, PacelineError) as error:
        return None, hidden(str(error))
    except BlockedLoop:
        return None, "it blocked the event loop that async code shares"
    except (Exception, SystemExit, KeyboardInterrupt, CancelledError) as error:  # noqa: BLE001 - the border; no key
        return None, described(error)


def dismiss(value: object) -> None:
    """Close a coroutine that nobody will await; it makes no difference to one that has ended."""
    if inspect.iscoroutine(value):
        value.close()


def own_copy(argument: Any) -> Any:
    """Copy what an environment may change: a task's columns, which a group shares, and a turn's calls, which the
    history shows."""
    if type(argument) in _NEVER_CHANGED:
        return argument
    if isinstance(argument, AgentTurn):
        if not argument.calls:
            return argument
        calls = tuple(dataclasses.replace(call, arguments=own_copy(call.arguments)) for call in argument.calls)
        return dataclasses.replace(argument, calls=calls)
    return _copied(dict(argument)) if isinstance(argument, Mapping) else argument


_NEVER_CHANGED = frozenset({type(None), str, bool, int, float})


def _copied(value: Any) -> Any:
    """Copy what JSON has by itself: `deepcopy` of a prompt costs more than a tiny environment does."""
    kind = type(value)
    if kind in _NEVER_CHANGED:
        return value
    if kind is dict:
        return {name: part if type(part) in _NEVER_CHANGED else _copied(part) for name, part in value.items()}
    if kind is list or kind is tuple:
        return kind(map(_copied, value))
    return copied(value)


async def awaited(value: Any) -> Any:
    """Wait for what can be awaited, as a coroutine that an event loop runs."""
    return await value
