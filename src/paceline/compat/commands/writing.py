"""A translation as text: a command line or a configuration file, with comments."""

import dataclasses
import shlex
import textwrap
from collections.abc import Iterable, Mapping

from paceline.compat.commands.translation import KINDS, Note, Translation
from paceline.config.building import following_values
from paceline.config.flat_yaml import yaml_line
from paceline.config.presets import preset_values
from paceline.config.reading import find_option, options

WIDTH = 110
"""Columns of a comment."""
INDENT = "#     "


def without_defaults(values: Mapping[str, object]) -> dict[str, object]:
    """Options that change something: neither defaults nor values that other options or the preset imply."""
    ground = {one.name: one.default for one in options() if one.default is not dataclasses.MISSING}
    ground |= following_values(values)
    ground |= preset_values(values.get("preset"))
    return {name: value for name, value in values.items() if name not in ground or ground[name] != value}


def as_words(values: Mapping[str, object]) -> list[str]:
    """Arguments of `paceline train`."""
    return [word for name, value in values.items() for word in _flag_words(name, value)]


def as_shell(found: Translation) -> str:
    """The command for a POSIX shell, one option per line."""
    assignments = "".join(f"{name}={shlex.quote(value)} " for name, value in found.environment.items())
    lines = [shlex.join(_flag_words(name, value)) for name, value in found.options.items()]
    start = shlex.join(["torchrun", *found.launch, "-m", "paceline", "train"]) if found.launch else "paceline train"
    return " \\\n    ".join([f"{assignments}{start}", *lines]) + "\n"


def as_yaml(values: Mapping[str, object]) -> str:
    """The file for `paceline train --config`."""
    return "".join(yaml_line(name, value) for name, value in values.items())


def as_comments(notes: Iterable[Note]) -> str:
    """Notes by kind, each line after a `#`, so that neither shell nor YAML reads them."""
    found = list(notes)
    blocks = [
        f"# {kind}: {meaning}\n{''.join(map(_comment, of_kind))}"
        for kind, meaning in KINDS.items()
        if (of_kind := [note for note in found if note.kind == kind])
    ]
    return "#\n".join(blocks)


def _comment(note: Note) -> str:
    text = " ".join(f"{note.about}: {note.text}".split())
    return textwrap.fill(text, WIDTH, initial_indent="#   ", subsequent_indent=INDENT, break_on_hyphens=False) + "\n"


def _flag_words(name: str, value: object) -> list[str]:
    """Flag and value; a value that is empty or begins with a hyphen follows an equals sign."""
    flag = find_option(name).flag
    texts = [_text(item) for item in value] if isinstance(value, tuple) else [_text(value)]
    if len(texts) == 1 and (texts[0] == "" or texts[0].startswith("-")):
        return [f"{flag}={texts[0]}"]
    return [flag, *texts]


def _text(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
