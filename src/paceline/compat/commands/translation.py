"""Records of a foreign command, its translation and a tool's reader; a translation as text."""

import dataclasses
import functools
import shlex
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from paceline.compat.vocabulary import NoteKind
from paceline.config.building import following_values
from paceline.config.flat_yaml import yaml_line
from paceline.config.presets import preset_values
from paceline.config.reading import find_option, options
from paceline.errors import ConfigError

KINDS: Mapping[NoteKind, str] = {
    "settled": "given more than once, or at odds: what is taken",
    "changed": "means something else here",
    "mended": "wrong there, and what is done here",
    "missing": "not in this version of Paceline",
    "idle": "has no effect",
}

ReadText = Callable[[str], str]
"""Reads the text of a file that the command names; ConfigError if it cannot be read."""


def no_files(path: str) -> str:
    """Refuse every file, where none can be read."""
    raise ConfigError(f"{path} cannot be read here; give its options as flags")


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignCommand:
    """A command, split as by a shell."""

    environment: Mapping[str, str]
    """Assignments before the command."""
    words: tuple[str, ...]
    inherited: Mapping[str, str] = field(default_factory=dict)
    """Variables that are set where the command would run."""
    read: ReadText = no_files
    """Reads configuration files and scripts, only those that are named."""


@dataclass(frozen=True, slots=True)
class Note:
    """One fact that a user of the other tool should know."""

    kind: NoteKind
    about: str
    """Flags, as their tool spells them."""
    text: str


@dataclass(kw_only=True, slots=True)
class Translation:
    """Paceline's options, by name and with their types, and notes; every part of a reader adds its own."""

    options: dict[str, object] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    """Assignments with the same meaning before `paceline train`."""
    launch: tuple[str, ...] = ()
    """Arguments of `torchrun` for several training processes; empty without a launcher."""
    explicit: set[str] = field(default_factory=set)
    """Options that the command's own flags decide: written out at their defaults too."""

    def decide(self, **options: object) -> None:
        """Add options, none of which is there yet."""
        assert not self.options.keys() & options.keys(), "each option is decided in one place"
        self.options |= options

    def note(self, kind: NoteKind, about: str, text: str) -> None:
        """Add a note."""
        self.notes.append(Note(kind, about, text))

    def add(self, other: "Translation") -> None:
        """Add the options and notes of a part."""
        self.decide(**other.options)
        self.notes += other.notes
        self.explicit |= other.explicit


@dataclass(frozen=True, slots=True)
class CommandReader:
    """Reader of one tool's commands. It reads no file except through the command's `read`."""

    name: str
    example: str
    """Beginning of its commands."""
    translate: Callable[[ForeignCommand, bool], Translation | None]
    """Translates every flag; with True the nearest valid numbers are taken where the given ones clash. None for a
    command of another tool. ConfigError for a flag, value or numbers that the tool refuses, or a feature not offered
    here; the sentence names flag, value, rule and remedy.
    """


WIDTH = 110
"""Columns of a comment."""


class Refusals:
    """Refusals of independent parts of a command, collected so that one error reports all of them."""

    def __init__(self) -> None:
        self._sentences: list[str] = []

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Collect the refusal of this part."""
        try:
            yield
        except ConfigError as error:
            if str(error) not in self._sentences:
                self._sentences.append(str(error))

    def check(self) -> None:
        """Raise the collected refusals as one ConfigError."""
        if len(self._sentences) == 1:
            raise ConfigError(self._sentences[0])
        if self._sentences:
            listed = " ".join(f"({number}) {text}" for number, text in enumerate(self._sentences, start=1))
            raise ConfigError(f"{len(self._sentences)} refusals: {listed}")


def without_defaults(values: Mapping[str, object], *, explicit: Collection[str] = ()) -> dict[str, object]:
    """Return the options that are neither defaults nor implied by other options or the preset.

    `explicit`: options that are kept at their defaults too.
    """
    ground = {option.name: option.default for option in options() if option.default is not dataclasses.MISSING}
    ground |= following_values(values)
    ground |= preset_values(values.get("preset"))
    return {
        name: value for name, value in values.items() if name in explicit or name not in ground or ground[name] != value
    }


def as_words(values: Mapping[str, object]) -> list[str]:
    """Arguments of `paceline train`."""
    return [word for name, value in values.items() for word in _flag_words(name, value)]


def as_shell(translation: Translation) -> str:
    """The command for a POSIX shell, one option per line."""
    assignments = "".join(f"{name}={shlex.quote(value)} " for name, value in translation.environment.items())
    lines = [shlex.join(_flag_words(name, value)) for name, value in translation.options.items()]
    start = (
        shlex.join(["torchrun", *translation.launch, "-m", "paceline", "train"])
        if translation.launch
        else "paceline train"
    )
    return " \\\n    ".join([f"{assignments}{start}", *lines]) + "\n"


def as_yaml(values: Mapping[str, object]) -> str:
    """The file for `paceline train --config`."""
    return "".join(yaml_line(name, value) for name, value in values.items())


def as_comments(notes: Sequence[Note]) -> str:
    """Notes by kind, each line after a `#`, so that neither shell nor YAML reads them."""
    fill = functools.partial(textwrap.fill, width=WIDTH, initial_indent="#   ", subsequent_indent="#     ")
    blocks = []
    for kind, meaning in KINDS.items():
        texts = [" ".join(f"{note.about}: {note.text}".split()) for note in notes if note.kind == kind]
        if texts:
            lines = (fill(text, break_on_hyphens=False) for text in texts)
            blocks.append("\n".join((f"# {kind}: {meaning}", *lines, "")))
    return "#\n".join(blocks)


def _flag_words(name: str, value: object) -> list[str]:
    """Flag and value; a value that is empty or begins with a hyphen follows an equals sign."""
    flag, texts = find_option(name).flag, list[str]()
    for item in value if isinstance(value, tuple) else (value,):
        plain = "none" if item is None else str(item)
        texts.append(plain.lower() if isinstance(item, bool) else plain)
    if len(texts) == 1 and (texts[0] == "" or texts[0].startswith("-")):
        return [f"{flag}={texts[0]}"]
    return [flag, *texts]
