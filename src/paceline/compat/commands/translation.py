"""Records of a foreign command and its translation, and the protocol of a tool's reader."""

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
"""Reads the text of a file that the command names.

Raises:
    ConfigError: it cannot be read.
"""


def no_files(path: str) -> str:
    """Raise for every file: there is nothing to read from."""
    raise ConfigError(f"{path} cannot be read here; give its options as flags")


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignCommand:
    """A command, split as by a shell."""

    environment: Mapping[str, str]
    """Assignments before the command."""
    words: tuple[str, ...]
    read: ReadText = no_files
    """Reads configuration files and scripts, only those that are named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """One fact that a user of the other tool should know."""

    kind: NoteKind
    about: str
    """Flags, as their tool spells them."""
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Translation:
    """Paceline's options, by name and with their types, and notes. Translations add up."""

    options: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Assignments with the same meaning before `paceline train`."""
    launch: tuple[str, ...] = ()
    """Arguments of `torchrun` for several training processes; empty without a launcher."""

    def __add__(self, other: "Translation") -> "Translation":
        assert not self.options.keys() & other.options.keys(), "each option is decided in one place"
        return Translation(
            options={**self.options, **other.options},
            notes=self.notes + other.notes,
            environment={**self.environment, **other.environment},
            launch=self.launch + other.launch,
        )


class CommandReader(Protocol):
    """Reader of one tool's commands. It reads no file except through the command's `read`."""

    @property
    def name(self) -> str:
        """Name of the tool."""

    @property
    def example(self) -> str:
        """Beginning of its commands."""

    def recognises(self, command: ForeignCommand) -> bool:
        """True for a command of the tool."""

    def translate(self, command: ForeignCommand, *, repair: bool) -> Translation:
        """Translate every flag; `repair` takes the nearest valid numbers where the given ones clash.

        Raises:
            ConfigError: a flag or value that the tool does not have, numbers that it refuses, or one of its features
                that is not offered here in any form; the sentence names flag, value, rule and remedy.
        """
