"""Flags of `trl grpo` and the file behind its `--config`: flags by line, `env` and `datasets`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import yaml

from paceline.compat.commands.fields import field_names
from paceline.compat.commands.flags import FlagWords, GivenFlags, read_flags
from paceline.compat.commands.launching import ACCELERATE, WITHOUT_EFFECT
from paceline.compat.commands.translation import ForeignCommand, Note
from paceline.compat.commands.trl.tables import SCRIPT, SCRIPT_IDLE, SCRIPT_REFUSED
from paceline.config.reading import suggest
from paceline.errors import ConfigError

OF_A_DATASET: Mapping[str, str] = {"path": "dataset_name", "name": "dataset_config", "split": "dataset_train_split"}
"""Keys in an entry of `datasets` that are flags as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrlCommand:
    """A parsed command line with its file."""

    given: GivenFlags
    environment: Mapping[str, str]
    notes: tuple[Note, ...]


def known_flags() -> tuple[str, ...]:
    """Every flag of `trl grpo`, including those that it passes on."""
    own = (*SCRIPT, *SCRIPT_IDLE, *SCRIPT_REFUSED, *field_names(), "config")
    return tuple(dict.fromkeys((*own, *ACCELERATE, *WITHOUT_EFFECT["accelerate"])))


def read(words: FlagWords, command: ForeignCommand) -> TrlCommand:
    """Parse flags over the lines of the file.

    Raises:
        ConfigError: a flag or a line that TRL does not have, or a file that cannot be read.
    """
    given, notes = read_flags(words, known_flags(), "TRL")
    path = given.pop("config", None)
    if path is None:
        return TrlCommand(given=given, environment={}, notes=notes)
    if len(path) != 1:
        raise ConfigError(f"--config must name one file, got {' '.join(path) or 'none'}")
    return with_file(given, notes, path[0], command)


def with_file(given: GivenFlags, notes: tuple[Note, ...], path: str, command: ForeignCommand) -> TrlCommand:
    """Lines of the file under the flags, which win."""
    try:
        found = yaml.safe_load(command.read(path))
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {path} is not YAML ({' '.join(str(error).split())}); mend it") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ConfigError(f"--config {path} must hold lines of `name: value`, got {type(found).__name__}")
    values = cast(dict[str, object], found)
    environment = values.pop("env", {})
    if not isinstance(environment, dict):
        raise ConfigError(f"--config {path}: env must hold names and values, got {environment!r}")
    lines = {**_dataset(values.pop("datasets", None), path), **{name: _words(one) for name, one in values.items()}}
    known = known_flags()
    for name in lines:
        if name not in known:
            raise ConfigError(f"--config {path}: TRL has no {name}; {suggest(name, known, otherwise='leave it out')}")
    over = tuple(
        Note(
            kind="settled",
            about=f"--{name}",
            text=f"{' '.join(given[name])}, where {path} has {' '.join(words)}; the flag counts",
        )
        for name, words in lines.items()
        if given.get(name, words) != words
    )
    texts = {name: str(value) for name, value in environment.items()}
    return TrlCommand(given={**lines, **given}, environment=texts, notes=notes + over)


def _dataset(entries: object, path: str) -> GivenFlags:
    if entries is None:
        return {}
    if not isinstance(entries, list) or len(entries) != 1 or not isinstance(entries[0], dict):
        raise ConfigError(
            f"--config {path}: datasets must hold one entry, got {entries!r}; a mixture is made beforehand, as one file"
        )
    entry = dict(entries[0])
    if isinstance(entry.get("data_files"), str):
        # rows of a kind of file, which here are named by themselves
        entry["path"] = entry.pop("data_files")
    for name in entry:
        if name not in OF_A_DATASET:
            raise ConfigError(f"--config {path}: datasets: {name} is not offered; {', '.join(OF_A_DATASET)} are")
    return {OF_A_DATASET[name]: (str(value),) for name, value in entry.items()}


def _words(value: object) -> FlagWords:
    if isinstance(value, list):
        return tuple(word for item in value for word in _words(item))
    if isinstance(value, dict):
        return (json.dumps(value),)
    if value is None:
        return ("none",)
    return (str(value).lower(),) if isinstance(value, bool) else (str(value),)
