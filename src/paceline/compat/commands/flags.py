"""Parses flags as `HfArgumentParser` does for TRL and ms-swift: `--name value ...`, to the words of each name.

Hyphens equal underscores, and an unambiguous abbreviation is accepted. A switch needs no value; `--no_name` turns it
off. Of a repeated flag the last counts.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence

from paceline.compat.commands.translation import Refusals, Translation
from paceline.compat.vocabulary import Meaning
from paceline.config.reading import suggest
from paceline.errors import ConfigError

FlagWords = tuple[str, ...]
Flags = dict[str, FlagWords]
"""Words of each flag, by its name with underscores."""

ON = ("true", "yes", "on", "1", "t", "y")
OFF = ("false", "no", "off", "0", "f", "n")
NOTHING = (*OFF, "none", "null", "")
"""Values that switch a feature off."""
NO_CHANGE = "at the value that changes nothing"
"""Note on a flag or field that would be refused at another value."""


def read_flags(
    words: Sequence[str], known: Collection[str], tool: str, translation: Translation, refusals: Refusals
) -> Flags:
    """Return every flag with its words, and note repeats that differ; refuses unknown flags, and words before any."""
    pieces: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            pieces.append((flag, [value] if equals else []))
        elif word == "-h" or not pieces:
            with refusals():
                raise ConfigError(f"{tool}: {word!r} belongs to no flag; write --flag before a value, leave -h out")
        else:
            pieces[-1][1].append(word)
    flags = Flags()
    for flag, texts in pieces:
        name, values = "", FlagWords()
        with refusals():
            name, values = _resolve(flag, tuple(texts), known, tool)
        if not name:
            continue
        if flags.get(name, values) != values:
            text = f"given as {' '.join(flags[name])}, then as {' '.join(values)}; the last counts"
            translation.note("settled", f"--{name}", text)
        flags[name] = values
    return flags


def _resolve(flag: str, values: FlagWords, known: Collection[str], tool: str) -> tuple[str, FlagWords]:
    name = flag.removeprefix("--").replace("-", "_")
    if name in known:
        return name, values
    if name.removeprefix("no_") in known and not values:
        return name.removeprefix("no_"), ("false",)
    longer = list({candidate for candidate in known if name and candidate.startswith(name)})
    if len(longer) == 1:
        return longer[0], values
    if longer:
        raise ConfigError(
            f"{tool}: {flag} could be {', '.join(f'--{candidate}' for candidate in sorted(longer))}; write it in full"
        )
    near = suggest(name, known, form=lambda right: f"--{right}", otherwise="leave it out")
    raise ConfigError(f"{tool} has no flag {flag}; {near}")


def is_on(flags: Mapping[str, FlagWords], name: str, *, otherwise: bool = False) -> bool:
    """Return the state of a switch, `otherwise` where it is not given; a flag without a word is on."""
    if name not in flags:
        return otherwise
    word = (flags[name] or ("true",))[-1].lower()
    if word not in (*ON, *OFF):
        raise ConfigError(f"--{name} must be true or false, got {word!r}")
    return word in ON


def value_of(flags: Mapping[str, FlagWords], name: str) -> str | None:
    """Return the only word of a flag, None if it is absent or `none`; ConfigError for no word or several."""
    if name not in flags:
        return None
    if len(flags[name]) != 1:
        raise ConfigError(f"--{name} must have one value, got {' '.join(flags[name]) or 'none'}; put quotes around it")
    return None if flags[name][0].lower() in ("none", "null") else flags[name][0]


def number(flags: Mapping[str, FlagWords], name: str, kind: Callable[[str], float] = float) -> float | None:
    """Return the number that a flag gives, None as `value_of` does; ConfigError for text that is no number."""
    text = value_of(flags, name)
    try:
        return None if text is None else kind(text)
    except ValueError:
        raise ConfigError(f"--{name} must be a number, got {text!r}") from None


def switches_off(words: FlagWords) -> bool:
    """Return True if every word is one that switches a feature off."""
    return bool(words) and all(word.lower() in NOTHING for word in words)


def options_of(flags: Mapping[str, FlagWords], meanings: Mapping[str, Meaning]) -> set[str]:
    """Return the options that the given flags decide: the first word of their text in `meanings`."""
    texts = [meanings[name].text for name in flags if name in meanings and meanings[name].kind == "option"]
    return {option for text in texts for option in re.split(r"[^a-z_]", text)[:1]}


def note_idle(
    flags: Mapping[str, FlagWords], meanings: Mapping[str, Meaning], translation: Translation, refusals: Refusals
) -> None:
    """Note each given flag without effect, and refuse values that ask for a refused feature."""
    for name, words in flags.items():
        row = meanings.get(name)
        if row is not None and row.kind == "idle":
            translation.note("idle", f"--{name}", row.text)
        elif row is not None and row.kind == "refused":
            if not switches_off(words) and not (words and set(words) <= set(row.also)):
                with refusals():
                    raise ConfigError(f"--{name} must be left out, got {' '.join(words) or 'true'!r}: {row.text}")
                continue
            translation.note("idle", f"--{name}", NO_CHANGE)
