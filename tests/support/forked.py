"""Processes forked from a server that has loaded the libraries: for tests of what a process does, not of its start."""

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy
import torch

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["peft", "tests.support.loaded_libraries"])
LONGEST_SECONDS = 240.0
"""A process that has not ended by then hangs."""


def fork_ranks(work: Callable[..., None], *arguments: object, count: int) -> None:
    """Have `count` processes do `work(rank, *arguments)`, and raise what one of them raises."""
    torch.multiprocessing.start_processes(work, args=arguments, nprocs=count, start_method="forkserver")


def forked(work: Callable[..., None], *arguments: object) -> subprocess.CompletedProcess[str]:
    """What a process that does `work(*arguments)` says, and how it ends."""
    with Program(work, *arguments) as program:
        return program.end()


class Program:
    """A process that does `work(*arguments)`, from the beginning of the block to its end; what it says is kept.

    It is the first of a process group.
    """

    def __init__(self, work: Callable[..., None], *arguments: object) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="paceline-")
        self._streams = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        names = tuple(map(str, self._streams))
        self._arguments, self.process = arguments, SERVER.Process(target=_speaking, args=(names, work, arguments))

    def __enter__(self) -> "Program":
        self.process.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.exitcode is None and self.process.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()  # where it has not come to its own group yet
            self.process.join()
        self._folder.cleanup()

    def end(self, within: float = LONGEST_SECONDS) -> subprocess.CompletedProcess[str]:
        """Wait until it has ended; AssertionError, with what it said, if it hangs."""
        self.process.join(within)
        said = [stream.read_text() if stream.exists() else "" for stream in self._streams]
        if self.process.exitcode is None:
            raise AssertionError(f"did not end within {within:g} s, and said: {''.join(said)}")
        return subprocess.CompletedProcess(self._arguments, self.process.exitcode, *said)


def python(words: Sequence[str], folder: str, environment: Mapping[str, str]) -> None:
    """Do what `python WORDS` does in a folder; ranks of torchrun are forked too.

    What an interpreter reads at its start, as PYTHONIOENCODING, is not read again.
    """
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if words[:2] == ["-m", "torch.distributed.run"]:
        assert words[2] == "--nproc-per-node"
        _agent(int(words[3]), list(words[4:]))
    else:
        _interpret(list(words))


def paceline(*words: object) -> subprocess.CompletedProcess[str]:
    """The command with these words."""
    return forked(_interpret, ["-m", "paceline", *map(str, words)])


def torchrun(*words: object, count: int = 2) -> subprocess.CompletedProcess[str]:
    """The words behind `torchrun --nproc-per-node COUNT`, by its own agent, whose ranks are forked instead of begun."""
    return forked(_agent, count, [str(word) for word in words])


def heed_signals() -> None:
    """Take the signals to stop as a terminal's programs do: nohup, a shell or a rank that ended has some ignored."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _speaking(streams: tuple[str, str], work: Callable[..., None], arguments: Sequence[Any]) -> None:
    os.setpgrp()
    heed_signals()
    _speak_to(streams)
    try:
        work(*arguments)
    finally:
        _shut_down()


def _shut_down() -> None:
    """End what runs at exit, as an interpreter does and a forked process does not."""
    threading._shutdown()
    atexit._run_exitfuncs()


def _speak_to(streams: tuple[str, str]) -> None:
    for number, name in enumerate(streams, start=1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)


def _interpret(words: list[str]) -> None:
    """Do what `python WORDS` does."""
    torch.set_num_threads(1)
    numpy.random.seed()  # a new interpreter's is
    is_module = words[0] == "-m"
    sys.argv = words[1:] if is_module else words
    sys.path.insert(0, os.getcwd() if is_module else str(Path(words[0]).absolute().parent))
    if is_module:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


def _agent(count: int, words: list[str]) -> None:
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, parse_args

    # the server that forked the agent forks its ranks: of itself it would start another one, for seconds
    forkserver._forkserver.ensure_running = lambda: None
    os.environ["OMP_NUM_THREADS"] = "1"  # otherwise the agent says in many lines that it sets this
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")  # what torchrun takes on one machine
    given = [*meeting, "--nproc-per-node", str(count), "--start-method", "forkserver", *words]
    config, _, _ = config_from_args(parse_args(given))
    streams = tuple(os.readlink(f"/proc/self/fd/{number}") for number in (1, 2))
    elastic_launch(config=config, entrypoint=_rank)(streams, os.getpgrp(), os.getcwd(), dict(os.environ), words)


def _rank(streams: tuple[str, str], group: int, folder: str, environment: Mapping[str, str], words: list[str]) -> None:
    heed_signals()
    os.setpgid(0, group)  # a terminal's Ctrl-C goes to the agent and its ranks
    _speak_to(streams)
    os.chdir(folder)
    os.environ.update(environment)  # the agent's, beside what it says to each rank
    try:
        _interpret(words)
    except SystemExit as end:
        if end.code:  # a rank that has done its part returns to the agent
            raise
    except BaseException:  # noqa: BLE001 - not swallowed: the agent would keep it to itself
        traceback.print_exc()
        sys.exit(1)
    finally:
        _shut_down()
