"""`paceline train`: start a new run, or resume one."""

import importlib.util
import os
import re
import socket
import time
from collections.abc import Collection
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.checkpoints.existing_runs import refuse_existing_run
from paceline.checkpoints.finding import newest_checkpoint, read_checkpoint
from paceline.checkpoints.run_directory import RunDir
from paceline.cli import DONE, INTERRUPTED
from paceline.cli.arguments import CONFIG, OVERRIDE, RESUME, Command, ParsedArguments, help_page, parse
from paceline.cli.configuration import (
    given_options,
    read_configuration,
    read_run_configuration,
    refuse_foreign_code,
    replaced_by,
)
from paceline.cli.libraries import loading_libraries
from paceline.compat.commands.layouts import in_our_words
from paceline.config.changing import override_names, plain_options, refuse_changes
from paceline.config.layout import ClusterConfig
from paceline.config.reading import options
from paceline.config.sections import Config
from paceline.errors import ConfigError, PacelineError
from paceline.reports.trackers.opening import check_trackers
from paceline.training.setup.checks import Checked, check
from paceline.workers.torchrun.environment import Launched, check_launched, launched

if TYPE_CHECKING:
    from paceline.training.backend import BackendFactory
    from paceline.workers.torchrun.launch import Leader

HEARD_SECONDS = 20.0
"""Seconds that a silent rank waits to be ended: a launcher ends all ranks with the first failure, and the rank that
prints the error may be slower."""

COMMAND = Command(
    name="train",
    usage="paceline train [--config FILE] [--option value ...]\n"
    "       paceline train --resume RUN [--option value ...] [--override OPTION ...]",
    summary="Train a language model on verifiable rewards. Without options: the embedded model and task, on a CPU.",
    door_options=(CONFIG, RESUME, OVERRIDE),
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
        print(help_page(COMMAND) if speaks else "", end="")
        return DONE
    if "resume" in given.door:
        return _resume(given, place)
    if given.several["override"]:
        raise ConfigError(
            "--override names options of a run that is gone on with, and there is no --resume; leave it out"
        )
    configuration = read_configuration(given)
    if speaks:
        print(configuration.origin, flush=True)
    config = configuration.config
    refuse_foreign_code(config, configuration.ground, given.options)
    output_dir = Path(config.loop.output_dir).expanduser() if config.loop.output_dir else default_output_dir(config)
    # no rank makes it before all have looked
    refuse_existing_run(output_dir)
    _check_layout(config, place)
    return _train(config, output_dir, resume=False, place=place, checked=check(config))


def default_output_dir(config: Config) -> Path:
    """`runs/` with a name of model, dataset and time."""
    names = [Path(address).stem for address in (config.model.model, *config.data.datasets)]
    words = [re.sub(r"[^\w.-]+", "-", name) for name in names]
    return Path("runs") / "-".join([*words, f"{datetime.now():%Y%m%d-%H%M%S}"])


def _resume(given: ParsedArguments, place: Launched | None) -> int:
    named = Path(given.door["resume"]).expanduser()
    is_checkpoint = named.parent.name == "checkpoints" and not (named / "config.yaml").is_file()
    path = named.parent.parent if is_checkpoint else named
    override = override_names(given.several["override"])
    written = given_options(given)
    output_dir = written.pop("output_dir", None)
    if output_dir is not None and Path(str(output_dir)).expanduser().resolve() != path.resolve():
        raise ConfigError(
            f"--output-dir {output_dir} is not the run behind --resume {path}, which goes on where it lies; "
            "leave it out"
        )
    config = read_run_configuration(path, given=written)
    refuse_foreign_code(config, path / "config.yaml", written)
    identity = RunDir(path).identity()
    before = plain_options(read_run_configuration(path)) if identity is None else identity["options"]
    refuse_changes(before, plain_options(config), override=override, written={*written, *replaced_by(written)})
    _check_layout(config, place)
    check_trackers(config.loop.report_to)
    if is_checkpoint:
        read_checkpoint(named, by_size=True)  # refused where it is not whole
    else:
        newest_checkpoint(path / "checkpoints", by_size=True)  # or none is
    return _train(config, path, resume=named if is_checkpoint else True, place=place, override=override)


def _check_layout(config: Config, place: Launched | None) -> None:
    """Refuse a layout that the number of processes does not fit."""
    _check_reachable(config.cluster)
    if place is not None:
        check_launched(config, place)
        return
    if config.cluster.cluster:
        if importlib.util.find_spec("ray") is None:
            raise ConfigError("--cluster needs the package ray; `pip install 'paceline[ray]'`")
        return
    options, needed, apart = config.parallel, config.parallel.fewest, config.parallel.sampling_ranks
    if apart:
        raise ConfigError(
            f"--sampling-ranks must be 0 in one process, got {apart}; start `torchrun "
            f"--nproc-per-node {needed + apart} -m paceline train` with the same options, where others train"
        )
    if needed > 1:
        context = f" times --context-parallel {options.context_parallel}" if options.context_parallel > 1 else ""
        raise ConfigError(
            f"--tensor-parallel {options.tensor_parallel} times --pipeline-parallel {options.pipeline_parallel}"
            f"{context} needs {needed} processes that train, and this is one; start "
            f"`torchrun --nproc-per-node {needed} -m paceline train` with the same options, or give --cluster "
            f"--num-consumers {needed}"
        )


def _train(
    config: Config,
    output_dir: Path,
    *,
    resume: Path | bool,
    place: Launched | None,
    checked: Checked | None = None,
    override: Collection[str] = (),
) -> int:
    def to_the_end(leader: "Leader | None" = None) -> int:
        # Loading torch takes seconds: whatever can be refused is refused before this line.
        with loading_libraries():
            from paceline.training.setup.preparation import prepare

        inputs = prepare(config, checked=checked)
        # What computes a model takes as long again: whatever needs no weights is refused before these lines.
        with loading_libraries():
            from rich.console import Console

            from paceline.training.session import train

            backend: BackendFactory
            if leader is not None:
                backend = leader.on_all_ranks
            elif config.cluster.cluster:
                from paceline.workers.ray import on_a_cluster

                backend = on_a_cluster
            else:
                from paceline.training.backend import in_this_process

                backend = in_this_process
        session = partial(train, config, inputs, output_dir, resume=resume, override=override)
        return DONE if session(console=Console(), make_backend=backend) else INTERRUPTED

    try:
        if place is None:
            return to_the_end()
        # All ranks meet before the first of them prepares: what it refuses, the others hear of.
        with loading_libraries():
            from paceline.workers.torchrun.launch import follow, leading

        if not place.leads:
            return follow(place, config)
        with leading(place, config) as leader:
            leader.status = to_the_end(leader)
        return leader.status
    except KeyboardInterrupt as interrupt:
        has_begun = (output_dir / "config.yaml").is_file()
        how = f"go on with `paceline train --resume {output_dir}`" if has_begun else "the run had not begun"
        raise KeyboardInterrupt(*interrupt.args, how) from None


REACH_SECONDS = 3.0
"""Connection timeout; within a cluster a connection takes milliseconds."""


def _check_reachable(options: ClusterConfig) -> None:
    """Refuse a cluster address at which nobody listens; Ray itself would retry for minutes."""
    address = options.ray_address
    if address is None or address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"--cluster must be HOST:PORT or auto, got {address!r}; Ray's own port is 6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_SECONDS).close()
    except OSError as error:
        why = error.strerror or "it does not answer"
        raise ConfigError(
            f"--cluster must be a running Ray cluster's, got {address!r} ({why}); start one with "
            "`ray start --head`, or give --cluster alone"
        ) from None
