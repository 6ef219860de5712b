"""Origin of each value of a configuration: a flag, a line of a file, a preset, the default."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from paceline.config.building import build_config, following_values
from paceline.config.flat_yaml import option_lines, yaml_line
from paceline.config.presets import preset_values
from paceline.config.reading import Option, find_option, option_name, options
from paceline.config.sections import Config
from paceline.config.sources import source_of

FOLLOWS = "follows from others"
DEFAULT = "default"
STALE = "default with --max-staleness above 0"
DIALECT = "another tool's flag"


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """One option of a configuration."""

    option: Option
    value: object
    origin: str
    source: str | None
    """Paper and equation, if there is one."""

    @property
    def text(self) -> str:
        """The value as written in a file."""
        return yaml_line(self.option.name, self.value).partition(":")[2].strip()


def explained(config: Config, *, flags: Mapping[str, str], file: Mapping[str, tuple[object, str]]) -> list[Explained]:
    """Every option, in the order of the sections.

    `flags` has the origin of each option that was given as a flag, `file` value and origin of each that a file gives. A
    file's value that is another now was fitted to the flags, as a recipe's warm-up is to a shorter run.
    """
    preset = config.advantage.preset
    stale = following_values({"max_staleness": config.cluster.max_staleness})
    found = []
    for option in options():
        value = getattr(getattr(config, option.section), option.name)
        if option.name in flags:
            origin = flags[option.name]
        elif option.name in file:
            written, origin = file[option.name]
            origin += "" if written == value else ", fitted to the flags"
        elif option.name in preset_values(preset):
            origin = f"preset {preset}"
        elif option.name in stale:
            origin = STALE
        else:
            origin = DEFAULT if value == option.default else FOLLOWS
        found.append(Explained(option=option, value=value, origin=origin, source=source_of(option.name, value)))
    return found


def of_file(text: str, values: Mapping[str, object], name: str) -> dict[str, tuple[object, str]]:
    """Value and line of each option in a configuration file."""
    lines = option_lines(text)
    return {option: (value, f"{name} line {lines[option]}") for option, value in values.items()}


def of_run(config: Config, text: str) -> dict[str, tuple[object, str]]:
    """Lines of a run's `config.yaml` that differ from the default; the file holds every option.

    Left out are values that are also what would hold if the file did not have them.
    """
    preset, model, dataset = config.advantage.preset, config.model.model, config.data.dataset
    base = build_config({"model": model, "dataset": dataset, "preset": preset})
    lines = option_lines(text)
    values = {option.name: getattr(getattr(config, option.section), option.name) for option in options()}
    held = {name: _held(base, name) for name in values} | dict(following_values(values))
    return {
        name: (value, f"config.yaml line {lines[name]}")
        for name, value in values.items()
        if name in lines and (name in ("model", "dataset", "preset") or value != held[name])
    }


def of_flags(given: Iterable[str], written: Iterable[str]) -> dict[str, str]:
    """Origin of each option in argv; `written` is argv before other tools' layout words were translated."""
    own = {option_name(word.partition("=")[0]) for word in written if word.startswith("--")}
    return {name: "flag" if name in own else DIALECT for name in given}


def _held(config: Config, name: str) -> object:
    return getattr(getattr(config, find_option(name).section), name)
