"""`paceline eval`: accuracy of a model on held-out tasks, with its interval, and the completions behind it."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from paceline.base_directory import hold_base, local_path
from paceline.checkpoints.existing_runs import is_run, refuse_no_run
from paceline.checkpoints.run_directory import RunDir
from paceline.checkpoints.run_files import holds_something, write_or_explain
from paceline.cli.arguments import CONFIG, Command, CommandFlag, before_flags, directories, parse
from paceline.cli.libraries import loading_libraries
from paceline.config.flat_yaml import to_yaml
from paceline.config.reading import options
from paceline.config.sections import Config
from paceline.errors import DONE, ConfigError, PacelineError
from paceline.models.places import holds_model
from paceline.reports.console import MeasurementDisplay, PlainConsole, open_console, tell
from paceline.reports.format import points_interval
from paceline.training.measuring import measure
from paceline.training.setup.checks import check_held_out, refuse_training_rows, refuse_unread_tasks
from paceline.training.setup.configuration import (
    of_trained_run,
    read_configuration,
    with_named_tasks,
)
from paceline.training.setup.file_names import seen_from
from paceline.training.setup.inputs import RunObjects
from paceline.training.setup.named_code import MEASURED, allow_named_code
from paceline.workers.torchrun.environment import launched

if TYPE_CHECKING:
    from paceline.training.evaluation import AccuracyResult

SECTIONS = ("model", "data", "engine", "environment", "evaluation")
SINGLE = (
    *("reward_funcs", "max_reward_failure_rate", "reward_timeout", "sandbox"),
    *("max_completion_length", "stop", "seed"),
)
"""Options of other sections that evaluation reads; the reward functions choose the default system message."""
TRAINING_ONLY = ("gradient_checkpointing", "turn_credit", "allow_overlap", "final_dtype")
"""Options of those sections that concern training only."""

BASELINE = CommandFlag(
    name="baseline",
    metavar="MODEL",
    help="Another model, such as the one that training began with: it is measured first, on the same tasks, and the "
    "difference is paired by task.",
)
OUTPUT_DIR = CommandFlag(
    name="output_dir",
    metavar="DIR",
    help="A new directory for the measurement: evals.jsonl, every completion with its verdict in evals/, and the "
    "options in options.yaml. Those of the baseline are in DIR/baseline.",
)
JSON = CommandFlag(
    name="json",
    help="Print one JSON object per held-out set on standard output, and everything else on standard error.",
)
QUIET = CommandFlag(
    name="quiet",
    help="Print only the accuracy of each held-out set: no progress, and no notes on options and tasks.",
)

COMMAND = Command(
    name="eval",
    usage="paceline eval --model MODEL --dataset DATASET [--option value ...]\n"
    "       paceline eval RUN [--option value ...]\n       paceline eval --config FILE",
    summary="Measure the accuracy of a model on held-out tasks: that of --model, or what a run trained, with the run's "
    "own held-out tasks, prompts, lengths and grader unless they are given. Without options: the embedded model and "
    "task.",
    flags=(CONFIG, BASELINE, OUTPUT_DIR, JSON, QUIET),
    options=tuple(
        option
        for option in options()
        if (option.section in SECTIONS and option.name not in TRAINING_ONLY) or option.name in SINGLE
    ),
)


def run(argv: list[str]) -> int:
    """Evaluate a model; returns the exit status."""
    launch = launched(os.environ)
    if launch is not None:
        if launch.local_rank:
            return DONE  # only the machine's first rank fails: the launcher would end it at another rank's failure
        raise ConfigError(
            f"paceline eval is one process, and a launcher started {launch.size}; start it without one, or measure in "
            "`paceline train`, whose ranks share the questions"
        )
    operands, words = before_flags(argv)
    arguments = parse(COMMAND, words)
    flags, file = _options_and_file(operands, arguments.options, arguments.flags.get("config"))
    as_json, quiet = "json" in arguments.flags, "quiet" in arguments.flags
    console = PlainConsole(stderr=True, quiet=quiet) if as_json else open_console(quiet=quiet)
    results = open_console() if quiet else console
    configuration = read_configuration(with_named_tasks(flags), file=file)
    tell(console, configuration.origin)
    config = configuration.config
    is_length_free = configuration.ground is None and "max_completion_length" not in flags
    output_dir = _new_directory(arguments.flags.get("output_dir"))
    other = seen_from(configuration.base, {"model": arguments.flags.get("baseline")})["model"]
    hold_base(configuration.base)
    allow_named_code(config, configuration.ground, configuration.given, runs=MEASURED)
    refuse_training_rows(config, configuration.ground, flags)
    refuse_unread_tasks(config, flags)
    checked, before = check_held_out(config), list["AccuracyResult"]()
    if "baseline" in arguments.flags:
        baseline = replace(config, model=replace(config.model, model=str(other)))
        baseline_dir = output_dir and output_dir / "baseline"
        for evaluation in _measured(baseline, checked, console, baseline_dir, is_length_free=is_length_free):
            before.append(evaluation)
            if not as_json:
                tell(results, f"baseline {describe(evaluation)}")
    evaluations = _measured(config, checked, console, output_dir, is_length_free=is_length_free, is_second=bool(before))
    for number, evaluation in enumerate(evaluations):
        first = before[number] if before else None
        if as_json:
            print(json.dumps(_as_json(config, evaluation, arguments.flags.get("baseline"), first)), flush=True)
        else:
            why = [] if quiet else [evaluation.reasons()]
            for line in (describe(evaluation), *why, *([compared(first, evaluation)] if first else [])):
                tell(results, line)
    return DONE


def _measured(
    config: Config,
    checked: RunObjects,
    console: Console,
    directory: Path | None,
    *,
    is_length_free: bool,
    is_second: bool = False,
) -> "Iterator[AccuracyResult]":
    """Measure a model with its progress on the console; each result is written to the directory before it is yielded.

    `is_second`: notes before the first number are left out, as they were printed for the first model.
    """
    run_dir = None
    if directory is not None:
        try:
            (directory / "evals").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"--output-dir {directory} cannot be written ({error.strerror}); give a directory where you may write"
            ) from error
        write_or_explain(directory / "options.yaml", to_yaml(config).encode())
        run_dir = RunDir(directory)
    longest = config.sampling.max_completion_length
    with MeasurementDisplay(console, name=config.model.model, longest=longest) as display:
        say = (lambda sentence: None) if is_second else display.say
        results = measure(config, checked, say=say, is_length_free=is_length_free, loading=loading_libraries)
        for evaluation in _kept(results, run_dir):
            if run_dir is not None:
                run_dir.write_eval_completions(evaluation.name, evaluation.step, evaluation.completion_records())
                run_dir.append_eval(evaluation.record())
            yield evaluation


def _kept(results: "Iterator[AccuracyResult]", run_dir: RunDir | None) -> "Iterator[AccuracyResult]":
    """Yield the results; if the measurement fails, write its completions so far to the directory."""
    try:
        yield from results
    except PacelineError as error:
        if run_dir is not None and error.kept is not None:
            from paceline.training.run import keep_given_up

            keep_given_up(run_dir, error)
        raise


def _options_and_file(
    operands: list[str], flags: dict[str, object], file: str | None
) -> tuple[dict[str, object], str | Path | None]:
    """Return the options and the configuration file that they override; a run may be an operand or the --model."""
    if operands:
        (directory,) = directories(operands, command="eval", form="RUN", at_most=1)
        if "model" in flags or file is not None:
            other = "--model" if "model" in flags else "--config"
            raise ConfigError(f"eval {directory} measures what that run trained; leave out {other}, or the run")
        if holds_model(directory) and not is_run(directory):
            raise ConfigError(
                f"eval {directory} is a model and no run; name the run that trained it, or measure it by "
                f"--model {directory}"
            )
        refuse_no_run(directory, "eval")
        flags = {**flags, "model": str(directory)}
    return of_trained_run(flags, file)


def _new_directory(named: str | None) -> Path | None:
    """Return the directory for the measurement, None without one; ConfigError if it is not empty."""
    if named is None:
        return None
    directory = local_path(named)
    if holds_something(directory):
        raise ConfigError(
            f"--output-dir {directory} must be a new or an empty directory, so that no measurement is overwritten; "
            "give another"
        )
    return directory


def _as_json(
    config: Config, evaluation: "AccuracyResult", baseline: str | None, before: "AccuracyResult | None"
) -> dict[str, Any]:
    """Return the record of `evals.jsonl` with the model and the counts of verdicts, and the baseline's beside it."""
    line = {"model": config.model.model, **evaluation.record(), "verdicts": evaluation.verdicts()}
    if before is None:
        return line
    from paceline.reports.trained_run import as_record, gain

    difference = as_record(gain(before.completion_records(), evaluation.completion_records()))
    first = {"model": baseline, **before.record(), "verdicts": before.verdicts()}
    return {**line, "baseline": first, "difference": difference}


def describe(evaluation: "AccuracyResult") -> str:
    """Return one line with the accuracy, its 95 % interval, the held-out set and the number of tasks."""
    return f"accuracy {evaluation.shown()}, 95 % interval, on {evaluation.name}, {evaluation.sample_size()}"


def compared(before: "AccuracyResult", after: "AccuracyResult") -> str:
    """Return one line with the difference, its 95 % interval, and the verdict of the test on it."""
    from paceline.reports.trained_run import as_record, gain, verdict

    change = gain(before.completion_records(), after.completion_records())
    return f"difference {points_interval(change.difference)}, paired by task; {verdict(as_record(change))}"
