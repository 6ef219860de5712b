"""Recipe, configuration file and given options, merged in this order into one `Config`; no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from paceline.base_directory import base_directory, named_path
from paceline.checkpoints.existing_runs import is_run, refuse_no_run
from paceline.config.building import build_config, following_values
from paceline.config.flat_yaml import parse_yaml
from paceline.config.presets import preset_values
from paceline.config.reading import find_option, parse_value
from paceline.config.sections import Config
from paceline.errors import ConfigError
from paceline.models.places import DEFAULT, DIRECTORIES, FINAL, RECIPE, holds_model
from paceline.training.setup.file_names import run_base, seen_from

ONE_OF = ("max_steps", "num_epochs")
"""Options that express the same thing; the one given closer to the command line replaces the other."""

OWN_SCHEDULE = ("lr_schedule", "warmup_steps", "min_lr_ratio")
"""Options in whose place `lr_scheduler` stands."""
EMBEDDED = {name: Path(__file__).parents[2] / "models" / directory for name, directory in DIRECTORIES.items()}
"""Directory of the models that ship with the package."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """A configuration, and where it comes from."""

    config: Config
    origin: str
    """One line for the user."""
    ground: Path | None
    """File below the flags: that of `--config`, a recipe, or none."""
    base: Path
    """Directory that relative names in `config` stand in."""
    given: Mapping[str, object]
    """Options of the command itself, with names of files relative to `base`."""


def read_configuration(
    flags: Mapping[str, object], *, file: str | Path | None = None, for_training: bool = True
) -> Configuration:
    """Configuration from given options over a file's, that of `--config`, or else over an embedded model's recipe.

    A recipe is the ground only where no file is given, and with its own model: `--model embedded-programs`, or
    none for the first embedded one. Of the two options of `ONE_OF` a given one wins over the file's.

    Raises:
        ConfigError: a file that cannot be read, or options that cannot be used, or both of `ONE_OF` in one place.
    """
    behind = " and the flags given" if flags else ""
    _refuse_both(flags, "")
    if file is not None:
        path = named_path(file)
        ground = parse_yaml(read_text(path, f"--config {path}"), str(path))
        base = run_base(path.parent) if is_config_of_run(path) else base_directory()
        flags = seen_from(base, flags)
        # a resolved configuration has every option: one at its default says nothing against the other
        changed_in_file = {name: value for name, value in ground.items() if value != find_option(name).default}
        _refuse_both(changed_in_file, f"{path}: ")
        return Configuration(
            config=build_config(_merged(ground, flags), for_training=for_training),
            origin=f"Options: {path}{behind}.",
            ground=path,
            base=base,
            given=flags,
        )
    model = str(flags.get("model", DEFAULT))
    if model not in EMBEDDED:
        origin = "Options: the flags given, else the defaults."
        config = build_config(flags, for_training=for_training)
        return Configuration(config=config, origin=origin, ground=None, base=base_directory(), given=flags)
    why = "" if "model" in flags else ", as neither --config nor --model is given"
    path = EMBEDDED[model] / RECIPE
    recipe = parse_yaml(path.read_text(encoding="utf-8"), RECIPE)
    if "max_steps" in flags and "warmup_steps" not in flags:
        # a warm-up no longer than the run, so that `--max-steps 2` is not refused for an unset option
        max_steps, warmup_steps = parse_value(find_option("max_steps"), flags["max_steps"]), recipe["warmup_steps"]
        if isinstance(max_steps, int) and isinstance(warmup_steps, int):
            recipe["warmup_steps"] = min(warmup_steps, max(0, max_steps))
    origin = f"Options: the {model} recipe{behind}{why}."
    config = build_config(_merged(recipe, flags), for_training=for_training)
    return Configuration(config=config, origin=origin, ground=path, base=base_directory(), given=flags)


def of_trained_run(flags: dict[str, object], file: str | Path | None) -> tuple[dict[str, object], str | Path | None]:
    """Return options that measure a model, and the file below them: where a run is the model, its final one and its
    own file.

    Raises:
        ConfigError: the run has no final model yet.
    """
    if "model" not in flags or not is_run(run := named_path(str(flags["model"]))):
        return flags, file
    final = run / FINAL
    if not holds_model(final):
        raise ConfigError(
            f"{run} has no final model yet, as its last step is not done; `paceline export {run} DIRECTORY` writes "
            "that of its newest checkpoint, to be measured by --model DIRECTORY"
        )
    return {**flags, "model": str(final)}, file or run / "config.yaml"


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


def with_following(ground: Mapping[str, object], flags: Mapping[str, object]) -> dict[str, object]:
    """Return a run's options with the defaults that follow from `flags`, and without another bound's shape.

    A value other than the default that followed before was chosen, and stays.
    """
    old, new = (
        {find_option(spelling).name: parse_value(find_option(spelling), value) for spelling, value in values.items()}
        for values in (ground, {**ground, **flags})
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


def with_named_tasks(flags: Mapping[str, object]) -> dict[str, object]:
    """Return the options of a command that measures, without a file's held-out tasks where the command names others.

    A dataset, a split or a share that is named is what is measured, whatever `eval_dataset` a run or a file has.
    """
    named, options = {find_option(spelling).name for spelling in flags}, dict(flags)
    if named & {"dataset", "dataset_split", "eval_share"} and "eval_dataset" not in named:
        options["eval_dataset"] = None
    if named & {"dataset", "dataset_split", "eval_dataset", "eval_split"} and "eval_share" not in named:
        options["eval_share"] = None
    if "dataset_split" in named and not named & {"eval_split", "eval_share"}:
        options["eval_split"] = flags["dataset_split"]
    return options


def replaced_by(flags: Mapping[str, object]) -> set[str]:
    """Options replaced by another with the same meaning: `max_steps` where `num_epochs` is given, `lr_scheduler` where
    a schedule of the options' own is."""
    there, named = _one_of(flags), {find_option(spelling).name for spelling in flags}
    replaced = {*ONE_OF} - there if there else set()
    return replaced | ({"lr_scheduler"} if named & {*OWN_SCHEDULE} and "lr_scheduler" not in named else set())


def _one_of(flags: Mapping[str, object]) -> set[str]:
    """Options of `ONE_OF` with a value; None counts as absent."""
    options = {find_option(spelling): value for spelling, value in flags.items()}
    return {option.name for option, value in options.items() if parse_value(option, value) is not None} & {*ONE_OF}


def _refuse_both(flags: Mapping[str, object], source: str) -> None:
    if len(_one_of(flags)) == 2:
        first, other = (find_option(name).flag for name in ONE_OF)
        raise ConfigError(f"{source}{first} and {other} are both given; give one of them")


def is_config_of_run(file: Path) -> bool:
    """Return True for the config.yaml of a run directory."""
    return file.name == "config.yaml" and is_run(file.parent)


def given_options(flags: Mapping[str, object], *, file: str | Path | None = None) -> dict[str, object]:
    """Options that a command names itself: in its `--config` file, which may be refused, and in flags over it."""
    if file is None:
        return dict(flags)
    path = named_path(file)
    return _merged(parse_yaml(read_text(path, f"--config {path}"), str(path)), flags)


def _merged(ground: Mapping[str, object], flags: Mapping[str, object]) -> dict[str, object]:
    replaced = replaced_by(flags)
    return {**{name: value for name, value in ground.items() if name not in replaced}, **flags}


def read_text(path: Path, source: str) -> str:
    """Read a text file; `place` names it in the error."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{source} cannot be read ({error.strerror}); check the path") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
