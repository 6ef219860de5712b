"""Environments by TRL's contract: an object whose methods are tools.

| the object                          | what it is                                                                   |
|-------------------------------------|------------------------------------------------------------------------------|
| `reset(**row)`                      | starts an episode; its text is added to the prompt, or its messages           |
| any other public method             | a tool, with types and a docstring                                           |
| `get_reward()`, where there is one  | the reward of the episode, a number or None; called once, at its end         |

Each may be `async def`. Every episode has an object of its own. `reset` gets the row's columns, as keywords if it takes
any; else only those that it names, and `seed` if it names that.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

from paceline.environments import AgentTurn, Observation
from paceline.environments.tools import Functions, ToolEnvironment
from paceline.types import Message

NO_TOOLS = ("reset", "get_reward")


def tool_methods(kind: type) -> list[Callable[..., Any]]:
    """Return the methods of a class that are tools, in the order of their names."""
    methods = inspect.getmembers(kind, inspect.isfunction)
    return [method for name, method in methods if name not in NO_TOOLS and not name.startswith("_")]


class ObjectEnvironment:
    """`Environment` around one object."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        methods = [getattr(inner, method.__name__) for method in tool_methods(type(inner))]
        self._calls = ToolEnvironment([Functions(methods)])

    @property
    def inner(self) -> Any:
        """The object, for reward functions."""
        return self._inner

    def begin(self, task: Mapping[str, Any], seed: int) -> Any:
        """Start an episode; returns the text or the messages that `reset` adds to the prompt."""
        self._calls.begin(task, seed)
        row = row_for(self._inner.reset, task, seed)
        opening = self._inner.reset(**row)
        return _later(opening, opening_of) if inspect.isawaitable(opening) else opening_of(opening)

    def observe(self, turn: AgentTurn) -> Observation | Awaitable[Observation]:
        """Carry out the turn's calls, as `ToolEnvironment` does."""
        return self._calls.observe(turn)

    def close(self) -> float | Awaitable[float | None] | None:
        """End the episode; returns its reward."""
        if not hasattr(self._inner, "get_reward"):
            return None
        reward = self._inner.get_reward()
        return _later(reward, reward_of) if inspect.isawaitable(reward) else reward_of(reward)


async def _later(value: Awaitable[Any], then: Callable[[Any], Any]) -> Any:
    return then(await value)


def row_for(reset: Callable[..., Any], task: Mapping[str, Any], seed: int) -> Mapping[str, Any]:
    """Return what `reset` gets of a row: all columns if it takes any, and the seed if it names that."""
    parameters = inspect.signature(reset).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    seeded = {"seed": seed, **task} if "seed" in parameters else task
    return {name: value for name, value in seeded.items() if takes_any or name in parameters}


def opening_of(value: object) -> str | Sequence[Message] | None:
    """Return text or messages; parts of one message's content, as TRL takes them, become its text.

    Raises:
        TypeError: it is something else, or a part of the content is no text.
    """
    if value is None or isinstance(value, str):
        return value
    parts = [part for part in value if isinstance(part, Mapping)] if isinstance(value, list | tuple) else []
    if not isinstance(value, list | tuple) or len(parts) < len(value):
        raise TypeError(f"reset must return a text, a list of messages, or None, got {type(value).__name__}")
    if all("role" in part for part in parts):
        return cast(Sequence[Message], parts)
    if any(part.get("type") != "text" for part in parts):
        raise TypeError("reset returned content that is no text: images, audio and video are not supported")
    return "".join(str(part["text"]) for part in parts)


def reward_of(value: Any) -> float | None:
    """Return a reward as a number.

    Raises:
        TypeError: it is none.
    """
    if value is None:
        return None
    if isinstance(value, str | bytes):
        raise TypeError(f"get_reward must return a number or None, got {value[:40]!r}")
    return float(value)
