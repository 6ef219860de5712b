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
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, Self

import numpy
import torch

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["peft", "tests.support.loaded_libraries"])
LONGEST_SECONDS = 300.0
"""A process that has not ended by then hangs: a short run takes one second, on a cluster half a minute."""


class Ended(subprocess.CompletedProcess[str]):
    """How a process ended, and what it wrote."""

    def __init__(self, args: object, returncode: int, stdout: str, stderr: str, seconds: float) -> None:
        """`seconds`: from the start of the process to its end."""
        super().__init__(args, returncode, stdout, stderr)
        self.seconds = seconds

    @property
    def said(self) -> str:
        """Standard output and then error, lines joined."""
        return " ".join((self.stdout + self.stderr).split())


def fork_ranks(work: Callable[..., None], *arguments: object, count: int) -> None:
    """Have `count` processes do `work(rank, *arguments)`, and raise what one of them raises."""
    torch.multiprocessing.start_processes(work, args=arguments, nprocs=count, start_method="forkserver")


def forked(work: Callable[..., None], *arguments: object) -> Ended:
    """Do `work(*arguments)` in a process, and wait for its end."""
    return Program(work, *arguments).start().end()


class Program:
    """A process that does `work(*arguments)`; what it writes is kept.

    It starts with `start`, or with a block at whose end it is killed; it is the first of a process group.
    """

    def __init__(self, work: Callable[..., None], *arguments: object) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="paceline-")
        self._streams = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        names = tuple(map(str, self._streams))
        self._arguments, self._process = arguments, SERVER.Process(target=_speaking, args=(names, work, arguments))
        self._started = 0.0

    def start(self) -> Self:
        """Start the process; `end` must be called."""
        self._started = time.perf_counter()
        self._process.start()
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if not self.ends_within(0):
            self.send(signal.SIGKILL, group=True)
            self._process.kill()  # where it has not come to its own group yet
            self._process.join()
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        """Identifier of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def ends_within(self, seconds: float) -> bool:
        """Wait up to so many seconds; return True if the process has ended by then."""
        self._process.join(seconds)
        return self._process.exitcode is not None

    def send(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to the process, or to its group as a terminal does, unless it is gone."""
        with suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, number)

    def end(self, within: float = LONGEST_SECONDS) -> Ended:
        """Wait until the process has ended.

        Raises:
            AssertionError: it hangs; it is killed.
        """
        try:
            has_ended, seconds = self.ends_within(within), time.perf_counter() - self._started
            said = [stream.read_text(errors="replace") if stream.exists() else "" for stream in self._streams]
            assert has_ended, f"did not end within {within:g} s, and said: {''.join(said)}"
            assert self._process.exitcode is not None
            return Ended(self._arguments, self._process.exitcode, *said, seconds)
        finally:
            self.__exit__()


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


def paceline(*words: object) -> Ended:
    """The command with these words."""
    return forked(_interpret, ["-m", "paceline", *map(str, words)])


def torchrun(*words: object, count: int = 2) -> Ended:
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
        shut_down()


def shut_down() -> None:
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
        shut_down()
