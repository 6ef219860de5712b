"""`paceline train`: start a new run, or resume one."""

import os
import time
from pathlib import Path

from rich.console import Console

from paceline.base_directory import hold_base
from paceline.checkpoints.run_directory import RunDir
from paceline.cli.arguments import CONFIG, Command, CommandFlag, HelpAsked, ParsedArguments, parse
from paceline.cli.libraries import loading_libraries
from paceline.compat.commands.layouts import translate_layout_flags
from paceline.config.reading import options
from paceline.errors import DONE, INTERRUPTED, ConfigError, PacelineError, exit_status_of, first_line
from paceline.reports.console import LOG_FORMATS, json_log, open_console, tell
from paceline.training.setup.checks import NO_OBJECTS, check
from paceline.training.setup.run_request import COMMAND_LINE_WORDING, new_run, resumed_run
from paceline.workers.processes import carry_out, check_processes
from paceline.workers.torchrun.environment import Launched, launched

FAILED_RANK_SECONDS = 20.0
"""Seconds that a failed rank waits before it exits: a launcher ends all ranks at the first failure, and the rank that
prints the error may be slower."""

RESUME = CommandFlag(
    name="resume",
    metavar="RUN",
    help="Run directory to resume from its last checkpoint, with the run's configuration; options that change what is "
    "computed have to be named by --override. Or one of its checkpoints, such as RUN/checkpoints/step-000100: what the "
    "run did afterwards is moved to RUN/aside.",
)
OVERRIDE = CommandFlag(
    name="override",
    metavar="OPTION",
    several=True,
    help="With --resume: options that may change, although the run then computes something else from the last "
    "checkpoint on; dataset, eval_dataset and model stand for their files too.",
)
QUIET = CommandFlag(
    name="quiet",
    help="Print nothing but an error, on standard error; the exit status and the run's files tell the rest.",
)
LOG_FORMAT = CommandFlag(
    name="log_format",
    metavar="FORMAT",
    help="text: lines that begin with the time, as in a log file, also on a terminal. json: one JSON object per line, "
    "with time and event.",
)
COMMAND = Command(
    name="train",
    usage="paceline train [--config FILE] [--option value ...]\n"
    "       paceline train --resume RUN [--option value ...] [--override OPTION ...]",
    summary="Train a language model on verifiable rewards. Without options: the embedded model and task, on a CPU.",
    flags=(CONFIG, RESUME, OVERRIDE, LOG_FORMAT, QUIET),
    options=options(),
)


def run(argv: list[str]) -> int:
    """Train in one process or as one rank of a launch; returns the exit status."""
    launch = launched(os.environ)
    if launch is None or launch.leads:
        return _run(argv, launch)
    # only the first rank of each machine prints: a wrong command is the same error on all
    try:
        return _run(argv, launch)
    except PacelineError as error:
        if launch.local_rank == 0:
            raise type(error)(f"rank {launch.rank}: {error}") from error
        time.sleep(FAILED_RANK_SECONDS)
        return error.exit_status
    except HelpAsked:
        return DONE
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(argv: list[str], launch: Launched | None) -> int:
    is_leader = launch is None or launch.leads
    arguments = parse(COMMAND, translate_layout_flags(argv))
    log_format = arguments.flags.get("log_format")
    if log_format not in (None, *LOG_FORMATS):
        raise ConfigError(f"--log-format must be {' or '.join(LOG_FORMATS)}, got {log_format!r}")
    console = open_console(log_format=log_format, quiet="quiet" in arguments.flags)
    log = json_log(console) if is_leader else None
    try:
        status, directory = _train(arguments, launch, console)
    except BaseException as error:  # also interrupts: the log ends with the exit status, whatever it is
        if log is not None:
            log.event("end", status=exit_status_of(error), error=first_line(error) or type(error).__name__)
        raise
    if log is not None:
        log.event("end", status=status, error=None, **(RunDir(directory).summary() if status == DONE else {}))
    return status


def _train(arguments: ParsedArguments, launch: Launched | None, console: Console) -> tuple[int, Path]:
    """Train by the parsed arguments; returns the exit status and the run's directory."""
    is_leader = launch is None or launch.leads
    file, override = arguments.flags.get("config"), arguments.flags.get("override", [])
    objects = NO_OBJECTS
    if "resume" in arguments.flags:
        request = resumed_run(arguments.flags["resume"], arguments.options, file=file, override=override)
        hold_base(request.base)
        check_processes(request.config, launch)
    elif override:
        raise ConfigError(
            "--override names options that a resumed run may change, and there is no --resume; leave it out"
        )
    else:
        request = new_run(arguments.options, file=file)
        hold_base(request.base)
        if is_leader:
            tell(console, request.origin)
        check_processes(request.config, launch)
        objects = check(request.config)
    if is_leader and console.is_terminal:
        tell(console, "loading torch and transformers, which takes some seconds")
    status = carry_out(
        request, objects, process=launch, wording=COMMAND_LINE_WORDING, console=console, loading=loading_libraries
    )
    return status, request.output_dir
