"""`paceline train`: start a new run, or resume one."""

import os
import time
from pathlib import Path

from rich.console import Console

from paceline.base_directory import hold_base
from paceline.checkpoints.run_directory import RunDir
from paceline.cli.arguments import CONFIG, Command, DoorOption, ParsedArguments, parse
from paceline.cli.libraries import loading_libraries
from paceline.compat.commands.layouts import in_our_words
from paceline.config.reading import options
from paceline.errors import DONE, INTERRUPTED, ConfigError, PacelineError, exit_status_of, first_line
from paceline.reports.console import LOG_FORMATS, json_log, open_console, tell
from paceline.training.setup.checks import NO_OBJECTS, check
from paceline.training.setup.run_request import COMMAND_LINE_WORDING, new_run, resumed_run
from paceline.workers.processes import carry_out, check_processes
from paceline.workers.torchrun.environment import Launched, launched

HEARD_SECONDS = 20.0
"""Seconds that a silent rank waits to be ended: a launcher ends all ranks with the first failure, and the rank that
prints the error may be slower."""

RESUME = DoorOption(
    name="resume",
    metavar="RUN",
    help="Run directory to go on with, exactly where it stood and as it was configured; options beside it that change "
    "what is computed have to be named by --override. Or one of its checkpoints, such as RUN/checkpoints/step-000100: "
    "what the run did afterwards is kept in RUN/aside.",
)
OVERRIDE = DoorOption(
    name="override",
    metavar="OPTION",
    several=True,
    help="With --resume: options that may be otherwise than before from the last checkpoint on, though the run then "
    "computes something else; dataset, eval_dataset and model stand for their files too.",
)
QUIET = DoorOption(
    name="quiet",
    help="Print nothing but an error, on standard error; the exit status and the run's files tell the rest.",
)
LOG_FORMAT = DoorOption(
    name="log_format",
    metavar="FORMAT",
    help="text: lines that begin with the time, as into a file, on a terminal too. json: one JSON object per line, "
    "with time and event.",
)
COMMAND = Command(
    name="train",
    usage="paceline train [--config FILE] [--option value ...]\n"
    "       paceline train --resume RUN [--option value ...] [--override OPTION ...]",
    summary="Train a language model on verifiable rewards. Without options: the embedded model and task, on a CPU.",
    door_options=(CONFIG, RESUME, OVERRIDE, LOG_FORMAT, QUIET),
    options=options(),
)


def run(argv: list[str]) -> int:
    """Train in one process or as one rank of a launch; returns the exit status."""
    place = launched(os.environ)
    if place is None or place.leads:
        return _run(argv, place)
    # no message on ranks other than the first of each machine: an error in a command is the same on all
    try:
        return _run(argv, place)
    except PacelineError as error:
        if place.local_rank == 0:
            raise type(error)(f"rank {place.rank}: {error}") from error
        time.sleep(HEARD_SECONDS)
        return error.exit_status
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(argv: list[str], place: Launched | None) -> int:
    speaks = place is None or place.leads
    given = parse(COMMAND, in_our_words(argv))
    if given.help:
        print(given.help if speaks else "", end="")
        return DONE
    log_format = given.door.get("log_format")
    if log_format not in (None, *LOG_FORMATS):
        raise ConfigError(f"--log-format must be {' or '.join(LOG_FORMATS)}, got {log_format!r}")
    console = open_console(log_format=log_format, quiet="quiet" in given.door)
    log = json_log(console) if speaks else None
    try:
        status, directory = _train(given, place, console)
    except BaseException as error:  # told to whoever reads the log, and raised again
        if log is not None:
            log.event("end", status=exit_status_of(error), error=first_line(error) or type(error).__name__)
        raise
    if log is not None:
        log.event("end", status=status, error=None, **(RunDir(directory).summary() if status == DONE else {}))
    return status


def _train(given: ParsedArguments, place: Launched | None, console: Console) -> tuple[int, Path]:
    """Train as the command line says; returns the exit status and the run's directory."""
    speaks = place is None or place.leads
    file, override = given.door.get("config"), given.several["override"]
    objects = NO_OBJECTS
    if "resume" in given.door:
        request = resumed_run(given.door["resume"], given.options, file=file, override=override)
        hold_base(request.base)
        check_processes(request.config, place)
    elif override:
        raise ConfigError(
            "--override names options of a run that is gone on with, and there is no --resume; leave it out"
        )
    else:
        request = new_run(given.options, file=file)
        hold_base(request.base)
        if speaks:
            tell(console, request.origin)
        check_processes(request.config, place)
        objects = check(request.config)
    if speaks and console.is_terminal:
        tell(console, "loading torch and transformers, which takes some seconds")
    status = carry_out(
        request, objects, process=place, wording=COMMAND_LINE_WORDING, console=console, loading=loading_libraries
    )
    return status, request.output_dir
