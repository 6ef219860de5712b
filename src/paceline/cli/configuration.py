"""Recipe, configuration file and flags, laid over each other in this order, to one `Config`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from paceline.cli.arguments import Given
from paceline.config import Config, build_config, find_option, parse_value, parse_yaml, preset_values
from paceline.embedded_models import DEFAULT, DIRECTORIES, RECIPE
from paceline.errors import CheckpointError, ConfigError

EMBEDDED = {name: Path(__file__).parent.parent / place for name, place in DIRECTORIES.items()}
"""Where the models that ship with the package lie."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """A configuration and where it came from."""

    config: Config
    origin: str
    """One line for the person at the terminal."""
    ground: Path | None
    """The file that the flags were laid over: `--config`'s, a recipe, or none."""


def read_configuration(given: Given) -> Configuration:
    """The configuration that a command's flags make, over its `--config` file or else an embedded model's recipe.

    A recipe is the ground only where no `--config` is given, and with its own model: `--model embedded-programs`, or
    none for the first embedded one.

    Raises:
        ConfigError: a file that cannot be read, or options that cannot be used.
    """
    flags = given.options
    if "config" in given.door:
        path = Path(given.door["config"]).expanduser()
        ground = parse_yaml(read_text(path, f"--config {path}"), str(path))
        origin = f"Options: {path}{_and(flags)}."
        return Configuration(config=_laid_over(ground, flags), origin=origin, ground=path)
    model = str(flags.get("model", DEFAULT))
    if model not in EMBEDDED:
        origin = "Options: the flags given, else the defaults."
        return Configuration(config=build_config(flags), origin=origin, ground=None)
    why = "" if "model" in flags else ", as neither --config nor --model is given"
    origin = f"Options: the {model} recipe{_and(flags)}{why}."
    return Configuration(
        config=_laid_over(_recipe(model, flags), flags), origin=origin, ground=EMBEDDED[model] / RECIPE
    )


def _recipe(model: str, flags: Mapping[str, object]) -> dict[str, object]:
    """The recipe, its warm-up no longer than the run: `--max-steps 2` must not be refused for a number left unsaid."""
    recipe = parse_yaml((EMBEDDED[model] / RECIPE).read_text(encoding="utf-8"), RECIPE)
    if "max_steps" in flags and "warmup_steps" not in flags:
        max_steps = parse_value(find_option("max_steps"), flags["max_steps"])
        warmup_steps = recipe["warmup_steps"]
        if isinstance(max_steps, int) and isinstance(warmup_steps, int):
            recipe["warmup_steps"] = min(warmup_steps, max(0, max_steps))
    return recipe


def read_run_configuration(
    run: Path, *, flag: str = "--resume", given: Mapping[str, object] = MappingProxyType({})
) -> Config:
    """The configuration that the run directory behind a flag was made with; `given`: options that are otherwise now.

    A preset that is given anew brings its values.

    Raises:
        CheckpointError: there is none.
        ConfigError: it was changed into one that cannot be used.
    """
    path = run / "config.yaml"
    if not path.is_file():
        raise CheckpointError(
            f"{flag} {run} is not a run directory (it has no config.yaml); give the directory of an earlier run"
        )
    ground = parse_yaml(read_text(path, f"{flag} {run}"), str(path))
    if "preset" in given and (preset := parse_value(find_option("preset"), given["preset"])) != ground.get("preset"):
        ground |= preset_values(preset)
    return _laid_over(ground, given)


def given_options(given: Given) -> dict[str, object]:
    """The options that a command names itself: those of its `--config` file, and its flags over them.

    Raises:
        ConfigError: a file that cannot be read.
    """
    if "config" not in given.door:
        return dict(given.options)
    path = Path(given.door["config"]).expanduser()
    return parse_yaml(read_text(path, f"--config {path}"), str(path)) | given.options


def _laid_over(ground: Mapping[str, object], flags: Mapping[str, object]) -> Config:
    return build_config({**ground, **flags})


def _and(flags: Mapping[str, object]) -> str:
    return " and the flags given" if flags else ""


def read_text(path: Path, place: str) -> str:
    """A file's text; `place` names it in the sentence where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{place} cannot be read ({error.strerror}); check the path") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
