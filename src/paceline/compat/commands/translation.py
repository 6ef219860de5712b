"""What a foreign command line is and what comes of it: the records of this room, and the border to a tool's words."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from paceline.errors import ConfigError

NoteKind = Literal["settled", "changed", "mended", "missing", "idle"]

KINDS: Mapping[NoteKind, str] = {
    "settled": "given more than once, or at odds: what is taken",
    "changed": "means something else here",
    "mended": "wrong there, and what is done here",
    "missing": "not in this version of Paceline",
    "idle": "has no effect",
}


ReadText = Callable[[str], str]
"""The text of a file that a command names.

Raises:
    ConfigError: it cannot be read.
"""


def no_files(path: str) -> str:
    """Where there is nothing to read from."""
    raise ConfigError(f"{path} cannot be read here; give its options as flags")


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignCommand:
    """A command as a shell has split it."""

    environment: Mapping[str, str]
    """Assignments that stood before the command."""
    words: tuple[str, ...]
    read: ReadText = no_files
    """For configuration files and scripts; those that are not named are not read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """One thing that whoever moves in should know."""

    kind: NoteKind
    about: str
    """Flags, as their tool spells them."""
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Translation:
    """Paceline's options, by name and of their types, and what should be known of them. Parts add up."""

    options: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Assignments that mean the same before `paceline train`."""
    launch: tuple[str, ...] = ()
    """What `torchrun` is told where several processes train; empty: there is no launcher."""

    def __add__(self, other: "Translation") -> "Translation":
        assert not self.options.keys() & other.options.keys(), "each option is decided in one place"
        return Translation(
            options={**self.options, **other.options},
            notes=self.notes + other.notes,
            environment={**self.environment, **other.environment},
            launch=self.launch + other.launch,
        )


class CommandReader(Protocol):
    """One tool's vocabulary. Reads no file but by the command's own `read`."""

    @property
    def name(self) -> str:
        """Of the tool."""

    @property
    def example(self) -> str:
        """How its commands begin."""

    def recognises(self, command: ForeignCommand) -> bool:
        """Whether this is a command of the tool."""

    def translate(self, command: ForeignCommand, *, repair: bool) -> Translation:
        """Every flag, in Paceline's options; `repair` takes the nearest numbers where the given ones clash.

        Raises:
            ConfigError: a flag or value that the tool does not have, numbers that it refuses, or one of its features
                that is not offered here in any form; the sentence names flag, value, rule and remedy.
        """
