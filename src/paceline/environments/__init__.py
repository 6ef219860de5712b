"""Environments hold conversations with a model: they say something to each of its turns, and when an episode is over.

This file is the interface. Tools are the plain case: an environment that calls functions.

resolving.py      from addresses of `--environment` to environments
parts.py          what one address leads to
tools.py          functions that a model calls
objects.py        objects whose methods are tools
harness.py        a program that brings its own loop, as an environment
agent_program.py  loads such a program where its endpoint is in the environment
builtin/          built-in tools and games
adapters/         environments of other packages
hosting/          where environments run, and their deadlines
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from paceline.chat.requests import AgentTurn, ModelReply, ModelRequest, ToolCall
from paceline.errors import ConfigError
from paceline.types import Message

__all__ = ["AgentTurn", "Environment", "EnvironmentSpec", "ModelReply", "ModelRequest", "Observation", "ToolCall"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What an environment says to a turn."""

    messages: tuple[Message, ...] = ()
    """Messages that the model reads next, usually one of the role `user`, or one of the role `tool` for each call."""
    reward: float | None = None
    """Reward of this turn; None: none is given for it."""
    done: bool = False
    """True: the episode is over, and the messages are for a reader only."""
    calls: int = 0
    """Tool calls of the turn that were dealt with, one that cannot be read included."""
    failed_calls: int = 0
    """Those among them whose result was an error."""
    request: ModelRequest | None = None
    """What the model is to read next, where a program holds the conversation; `messages` is empty then."""


class Environment(Protocol):
    """One episode's other side. Made anew for each episode; knows nothing of models, tokens or other episodes.

    `begin`, `observe` and `close` may be `async def`. A call that raises or takes too long ends the episode without a
    reward: nothing of it is trained on.
    """

    def begin(
        self, task: Mapping[str, Any], seed: int
    ) -> str | Sequence[Message] | ModelRequest | Awaitable[Any] | None:
        """Start an episode; returns what is added to the prompt: text for its last message, further messages, or None.

        A `ModelRequest` takes the place of the prompt.

        `task` has the columns of the dataset's row, `prompt`, `messages` and `answer` among them. All episodes of a
        prompt's group have the same `seed` and must begin alike.
        """

    def observe(self, turn: AgentTurn) -> Observation | Awaitable[Observation]:
        """Return what the model observes after its turn."""

    def close(self) -> float | Awaitable[float | None] | None:
        """End the episode; returns its reward, or None where those of the turns are all there is (they add up)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentSpec:
    """An environment that a run can use."""

    name: str
    """Name in records and metrics, and of its reward."""
    make: Callable[[], Environment]
    """Makes the environment of one episode, in this process."""
    reserve: Callable[[], Callable[[], Environment]] | None = None
    """Called for each episode in order, in the sampler's thread; what it returns is called there too, and makes an
    environment for each attempt to begin the episode. None: `make` does, where the environment runs."""
    address: str = ""
    """Where another process finds the function that makes it: `module:attribute` or `file.py:attribute`. An object may
    have a method `prepare` beside, which is called before with the same arguments, once for all episodes."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of that function by name, such as JSON can hold."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """JSON schemas of its tools, as chat templates show them; empty: it has none, and calls are not looked for."""
    check: Callable[[], object] = tuple
    """Called once before a run begins; raises what every episode would fail with, a sandbox that cannot be had."""
    is_instant: bool = False
    """True if it only computes within bounds of its own, or interrupts itself: it is called in the engine's thread. It
    has no other deadline, as that thread cannot leave its own call; where it hangs, the watchdog ends the run."""
    own_process: bool = False
    """True if each episode gets a process of its own, which makes it from its address, and is killed at a deadline."""
    has_reward: bool = False
    """True if it gives rewards: they count as those of a reward function of its name."""
    digest: str = ""
    """Hash of what decides its observations, as far as it can be known: a resumed run has the same."""
    package: str = ""
    """Name and version of the installed package that has its code, likewise; empty: none has."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What to say of it at the start of a run."""

    def __post_init__(self) -> None:
        if self.own_process and (self.is_instant or not self.address):
            raise ConfigError(
                f"environment {self.name!r} is to have a process of its own, but "
                + ("is instant too" if self.is_instant else "has no address that another process can load it from")
                + "; give it its module or file, or let it run in this process"
            )
