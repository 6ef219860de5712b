"""What an episode waits for: whoever drives it gets one of these, and resumes it with what it waited for."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from paceline.environments.hosting import Outcome
from paceline.environments.hosting.results import Method
from paceline.types import Media


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupBegun:
    """Wait until all episodes of the task have begun: they share a prompt where they begin alike."""

    def __await__(self) -> Generator[Any, Any, bool]:
        """Return True if an environment of the group has added to the prompt."""
        adds_to_prompt: bool = yield self
        return adds_to_prompt


@dataclass(frozen=True, kw_only=True, slots=True)
class NextTurn:
    """Wait for the model's next turn."""

    number: int
    """Turns of the episode before this one."""
    prompt_ids: tuple[int, ...]
    """The whole context of the turn."""
    media: tuple[Media, ...] = ()
    """Images of the context."""
    limit: int
    """Tokens of the turn, at most."""
    continues: bool
    """True if the context begins with that of the latest turn and its tokens."""

    def __await__(self) -> Generator[Any, Any, Any]:
        """Return the sampled tokens and their text (`Finished`), or the whole `Completion` of an only turn."""
        return (yield self)


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentCall:
    """Wait for a method of the environment. A `begin` makes the environment anew."""

    method: Method
    arguments: tuple[Any, ...] = ()

    def __await__(self) -> Generator[Any, Any, Outcome]:
        """Return what the call came to; it never raises what the environment raises."""
        outcome: Outcome = yield self
        return outcome


Wait = GroupBegun | NextTurn | EnvironmentCall
