"""Recipe, configuration file and given options, merged in this order into one `Config`; no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from paceline.checkpoints.existing_runs import refuse_no_run
from paceline.config.building import build_config, following_values
from paceline.config.flat_yaml import parse_yaml
from paceline.config.presets import preset_values
from paceline.config.reading import find_option, parse_value
from paceline.config.sections import Config
from paceline.errors import ConfigError
from paceline.models.places import DEFAULT, DIRECTORIES, RECIPE

ONE_OF = ("max_steps", "num_epochs")
"""Options that express the same thing; the one given closer to the command line replaces the other."""

EMBEDDED = {name: Path(__file__).parents[2] / "models" / place for name, place in DIRECTORIES.items()}
"""Directory of the models that ship with the package."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """A configuration and its origin."""

    config: Config
    origin: str
    """One line for the user."""
    ground: Path | None
    """File below the flags: that of `--config`, a recipe, or none."""


def read_configuration(flags: Mapping[str, object], *, file: str | Path | None = None) -> Configuration:
    """Configuration from given options over a file's, that of `--config`, or else over an embedded model's recipe.

    A recipe is the ground only where no file is given, and with its own model: `--model embedded-programs`, or
    none for the first embedded one. Of the two options of `ONE_OF` a given one wins over the file's.

    Raises:
        ConfigError: a file that cannot be read, or options that cannot be used, or both of `ONE_OF` in one place.
    """
    behind = " and the flags given" if flags else ""
    _refuse_both(flags, "")
    if file is not None:
        path = Path(file).expanduser()
        ground = parse_yaml(read_text(path, f"--config {path}"), str(path))
        # a resolved configuration has every option: one at its default says nothing against the other
        told = {name: value for name, value in ground.items() if value != find_option(name).default}
        _refuse_both(told, f"{path}: ")
        return Configuration(
            config=build_config(_merged(ground, flags)), origin=f"Options: {path}{behind}.", ground=path
        )
    model = str(flags.get("model", DEFAULT))
    if model not in EMBEDDED:
        origin = "Options: the flags given, else the defaults."
        return Configuration(config=build_config(flags), origin=origin, ground=None)
    why = "" if "model" in flags else ", as neither --config nor --model is given"
    path = EMBEDDED[model] / RECIPE
    recipe = parse_yaml(path.read_text(encoding="utf-8"), RECIPE)
    if "max_steps" in flags and "warmup_steps" not in flags:
        # a warm-up no longer than the run, so that `--max-steps 2` is not refused for an unset option
        max_steps, warmup_steps = parse_value(find_option("max_steps"), flags["max_steps"]), recipe["warmup_steps"]
        if isinstance(max_steps, int) and isinstance(warmup_steps, int):
            recipe["warmup_steps"] = min(warmup_steps, max(0, max_steps))
    origin = f"Options: the {model} recipe{behind}{why}."
    return Configuration(config=build_config(_merged(recipe, flags)), origin=origin, ground=path)


def read_run_configuration(
    run: Path, *, flag: str = "--resume", given: Mapping[str, object] = MappingProxyType({})
) -> Config:
    """Configuration of the run directory behind a flag; `given` holds options that differ now.

    A preset that is given anew brings its values, and other options the defaults that follow from them.

    Raises:
        CheckpointError: it is no run directory.
        ConfigError: it was changed into one that cannot be used.
    """
    refuse_no_run(run, flag)
    path = run / "config.yaml"
    ground = parse_yaml(read_text(path, f"{flag} {run}"), str(path))
    brought = dict[str, object]()
    if "preset" in given and (preset := parse_value(find_option("preset"), given["preset"])) != ground.get("preset"):
        brought = {**preset_values(preset), **following_values({"bound": given.get("bound")})}
    ground = {**with_following(ground, {**brought, **given}), **brought}
    return build_config(_merged(ground, given))


def with_following(ground: Mapping[str, object], given: Mapping[str, object]) -> dict[str, object]:
    """Return a run's options with the defaults that follow from what is given, and without another bound's shape.

    A value other than the default that followed before was chosen, and stays.
    """
    old, new = (
        {find_option(spelling).name: parse_value(find_option(spelling), value) for spelling, value in values.items()}
        for values in (ground, {**ground, **given})
    )
    before, after, fitted = following_values(old), following_values(new), dict(ground)
    for name in (*before, *after):
        default = find_option(name).default
        if name in old and old[name] == before.get(name, default):
            fitted[name] = after.get(name, default)
    bound = find_option("bound")
    if old.get("bound", bound.default) != new.get("bound", bound.default):
        fitted["bound_shape"] = None
    return fitted


def replaced_by(given: Mapping[str, object]) -> set[str]:
    """Options replaced by another with the same meaning: `max_steps` where `num_epochs` is given."""
    there = _one_of(given)
    return {*ONE_OF} - there if there else set()


def _one_of(given: Mapping[str, object]) -> set[str]:
    """Options of `ONE_OF` with a value; None counts as absent."""
    found = {find_option(spelling): value for spelling, value in given.items()}
    return {option.name for option, value in found.items() if parse_value(option, value) is not None} & {*ONE_OF}


def _refuse_both(given: Mapping[str, object], place: str) -> None:
    if len(_one_of(given)) == 2:
        one, other = (find_option(name).flag for name in ONE_OF)
        raise ConfigError(f"{place}{one} and {other} are both given; give one of them")


def given_options(flags: Mapping[str, object], *, file: str | Path | None = None) -> dict[str, object]:
    """Options that a command names itself: in its `--config` file, which may be refused, and in flags over it."""
    if file is None:
        return dict(flags)
    path = Path(file).expanduser()
    return _merged(parse_yaml(read_text(path, f"--config {path}"), str(path)), flags)


def _merged(ground: Mapping[str, object], flags: Mapping[str, object]) -> dict[str, object]:
    replaced = replaced_by(flags)
    return {**{name: value for name, value in ground.items() if name not in replaced}, **flags}


def read_text(path: Path, place: str) -> str:
    """Read a text file; `place` names it in the error."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{place} cannot be read ({error.strerror}); check the path") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
