"""Requests of an entry point: a new run, or one to resume, refused where files alone can tell; no torch."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from paceline.base_directory import base_directory, expanded, held_base, local_path, named_path
from paceline.checkpoints.existing_runs import refuse_existing_run, refuse_no_run
from paceline.checkpoints.finding import newest_checkpoint, read_checkpoint, run_and_checkpoint
from paceline.checkpoints.run_directory import RunDir
from paceline.config.building import following_values
from paceline.config.changing import override_names, plain_options, refuse_changes
from paceline.config.presets import preset_values
from paceline.config.reading import find_option
from paceline.config.sections import Config
from paceline.errors import ConfigError
from paceline.reports.trackers import check_trackers
from paceline.training.setup.configuration import (
    given_options,
    read_configuration,
    read_run_configuration,
    replaced_by,
)
from paceline.training.setup.file_names import run_base, seen_from
from paceline.training.setup.named_code import allow_named_code, run_around

HELD_OUT_OPTIONS = frozenset({"dataset", "dataset_split", "eval_dataset", "eval_split", "eval_share"})
"""Options that decide what is held out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """A run to begin or to resume."""

    config: Config
    output_dir: Path
    """The run directory, absolute."""
    named: Path | None = None
    """The run directory as its user names it; None: by its whole name."""
    base: Path = field(default_factory=base_directory)
    """Directory that relative names in `config` stand in."""
    origin: str = ""
    """One line for the user on where the options come from."""
    resume: Path | bool = False
    """True continues from the newest whole checkpoint; a path names the checkpoint to continue from."""
    override: frozenset[str] = frozenset()
    """Options, and the files that they name, that may differ from those that the run had."""
    evaluates: bool = True
    """False for a resumed run that began without held-out tasks and is given none now."""

    @property
    def shown(self) -> Path:
        """The run directory in sentences for its user."""
        return self.named or self.output_dir


@dataclass(frozen=True, kw_only=True, slots=True)
class Wording:
    """How an entry point words sentences for its user."""

    resume: Callable[[Path], str]
    """How to resume the run in a directory."""
    reword: Callable[[str], str] = str
    """Puts a sentence that names options as flags into the words of the entry point."""


COMMAND_LINE_WORDING = Wording(resume=lambda run: f"`paceline train --resume {run}`")


def new_run(flags: Mapping[str, object], *, file: str | Path | None) -> RunRequest:
    """Request a new run with given options over those of a file or a recipe.

    Raises:
        ConfigError: options that cannot be used, or a directory that holds a run.
    """
    configuration = read_configuration(flags, file=file)
    config = configuration.config
    directory, base = config.loop.output_dir, configuration.base
    output_dir = default_output_dir(config) if directory is None else named_path(directory)
    with held_base(base):
        allow_named_code(config, configuration.ground, configuration.given, output_dir=base / output_dir)
    # no rank makes it before all have looked
    named = output_dir if base == base_directory() else base / output_dir
    refuse_existing_run(named)
    return RunRequest(config=config, output_dir=base / output_dir, named=named, base=base, origin=configuration.origin)


def default_output_dir(config: Config) -> Path:
    """`runs/` with a name of model, dataset and time."""
    names = [Path(address).stem for address in (config.model.model, *config.data.datasets)]
    words = [re.sub(r"[^\w.-]+", "-", name) for name in names]
    return Path("runs") / "-".join([*words, f"{datetime.now():%Y%m%d-%H%M%S}"])


def resumed_run(
    named: str | Path, flags: Mapping[str, object], *, file: str | Path | None, override: Sequence[str]
) -> RunRequest:
    """Request that the run at a path continues, or from the checkpoint at a path.

    Raises:
        CheckpointError: there is no run, or no whole checkpoint.
        ConfigError: an option changes what is computed, and `override` does not name it.
    """
    path, checkpoint = run_and_checkpoint(named_path(named), base_directory())
    overridden, written = override_names(override), given_options(flags, file=file)
    output_dir = written.pop("output_dir", None)
    if output_dir is not None and local_path(str(output_dir)).resolve() != path.resolve():
        raise ConfigError(
            f"--output-dir {output_dir} is not the run behind --resume {path}, which goes on where it lies; "
            "leave it out"
        )
    refuse_no_run(path, "--resume")
    base, here = run_base(path), base_directory()
    written = seen_from(base, written, plain_options(read_run_configuration(path)))
    config = read_run_configuration(path, given=written)
    is_own_file = file is not None and run_around(expanded(file)) is None
    trusted = written if is_own_file else seen_from(base, flags, plain_options(read_run_configuration(path)))
    with held_base(base):
        allow_named_code(config, here / path / "config.yaml", trusted, override=overridden, output_dir=here / path)
    identity = RunDir(path).identity()
    names_tasks = not HELD_OUT_OPTIONS.isdisjoint(find_option(spelling).name for spelling in written)
    before = plain_options(read_run_configuration(path)) if identity is None else identity["options"]
    options, followed = plain_options(config), set(replaced_by(written))
    if written:  # what was given brings other options with it
        followed |= {"bound_shape", *following_values(before), *following_values(options)}
    if "preset" in written:
        followed |= preset_values(options["preset"]).keys()
    refuse_changes(before, options, override=overridden, written={*written, *followed})
    check_trackers(config.loop.report_to)
    if checkpoint is not None:
        read_checkpoint(checkpoint, by_size=True)  # refused where it is not whole
    else:
        newest_checkpoint(path / "checkpoints", by_size=True)  # or none is
    return RunRequest(
        config=config,
        output_dir=here / path,
        named=path,
        base=base,
        resume=here / checkpoint if checkpoint else True,
        override=overridden,
        evaluates=identity is None or bool(identity["eval_dataset"]) or names_tasks,
    )
