"""Where a run's sampler and trainer are: in this process, in actors of a cluster, or on the ranks of a launch."""

import importlib.util
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from paceline.checkpoints.existing_runs import holds_work
from paceline.config.layout import ClusterConfig
from paceline.config.packages import install_command
from paceline.config.sections import Config
from paceline.errors import DONE, INTERRUPTED, ConfigError
from paceline.training.setup.checks import NO_OBJECTS
from paceline.training.setup.inputs import RunObjects
from paceline.training.setup.run_request import RunRequest, Wording
from paceline.workers.torchrun.environment import Launched, check_launched

if TYPE_CHECKING:
    from rich.console import Console

    from paceline.training.backend import BackendFactory
    from paceline.workers.torchrun.launch import Launch

REACH_SECONDS = 3.0
"""Connection timeout; within a cluster a connection takes milliseconds."""

Loading = Callable[[], AbstractContextManager[None]]
"""Around imports that take seconds."""


def check_processes(config: Config, process: Launched | None) -> None:
    """Refuse a layout that the number of processes does not fit, or a cluster that cannot be had (ConfigError)."""
    _check_reachable(config.cluster)
    if process is not None:
        check_launched(config, process)
        return
    if config.cluster.cluster:
        if importlib.util.find_spec("ray") is None:
            raise ConfigError(f"--cluster needs the package ray; `{install_command('ray')}`")
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


def choose_backend(config: Config, launch: "Launch | None") -> "BackendFactory":
    """Choose what builds the backend: ranks where a launcher started them, a cluster, or this process."""
    if launch is not None:
        return launch.on_all_ranks
    if config.cluster.cluster:
        from paceline.workers.ray import on_a_cluster

        return on_a_cluster
    from paceline.training.backend import in_this_process

    return in_this_process


def carry_out(
    request: RunRequest,
    objects: RunObjects = NO_OBJECTS,
    *,
    place: Launched | None,
    wording: Wording,
    console: "Console | None" = None,
    loading: Loading = nullcontext,
) -> int:
    """Run to the last step or to an interrupt, in one process or as one rank of a launch; returns the exit status."""

    def to_the_end(launch: "Launch | None" = None) -> int:
        # loading torch takes seconds: whatever can be refused is refused before this line
        with loading():
            from paceline.training.setup.preparation import prepare_request

        inputs = prepare_request(request, objects)
        # what computes a model takes as long again: whatever needs no weights is refused before these lines
        with loading():
            from paceline.reports.console import open_console
            from paceline.training.session import train

            make_backend = choose_backend(request.config, launch)
        is_done = train(request, inputs, console=console or open_console(), make_backend=make_backend, wording=wording)
        return DONE if is_done else INTERRUPTED

    with saying_how_to_resume(request, wording):
        if place is None:
            return to_the_end()
        # all ranks meet before the first of them prepares: a refusal then reaches the others
        with loading():
            from paceline.workers.torchrun.launch import Launch

        launch = Launch(place, request.config, objects)
        if not place.leads:
            return int(launch.follow())
        with launch.lead():
            launch.result = to_the_end(launch)
        return int(launch.result)


@contextmanager
def saying_how_to_resume(request: RunRequest, wording: Wording) -> Iterator[None]:
    """Add to an interrupt how to resume the run."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        has_work = holds_work(request.output_dir)
        how = f"go on with {wording.resume(request.shown)}" if has_work else "no step had finished; start it again"
        raise KeyboardInterrupt("; ".join([*map(str, interrupt.args), how])) from None
