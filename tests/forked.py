"""Processes forked from a server that has loaded the libraries: for tests of what a process does, not of its start."""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["peft", "tests.loaded_libraries"])
LONGEST_SECONDS = 240.0
"""A process that has not ended by then hangs."""


def fork_ranks(work: Callable[..., None], *arguments: object, count: int) -> None:
    """Have `count` processes do `work(rank, *arguments)`, and raise what one of them raises."""
    torch.multiprocessing.start_processes(work, args=arguments, nprocs=count, start_method="forkserver")


def forked(work: Callable[..., None], *arguments: object) -> subprocess.CompletedProcess[str]:
    """What a process that does `work(*arguments)` says, and how it ends."""
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        streams = tuple(str(Path(folder, name)) for name in ("stdout", "stderr"))
        process = SERVER.Process(target=_speaking, args=(streams, work, arguments))
        process.start()
        process.join(LONGEST_SECONDS)
        if process.exitcode is None:
            process.kill()
            raise AssertionError(f"did not end within {LONGEST_SECONDS:g} s")
        said = (Path(name).read_text() if os.path.exists(name) else "" for name in streams)
        return subprocess.CompletedProcess(arguments, process.exitcode, *said)


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
    heed_signals()
    _speak_to(streams)
    work(*arguments)


def _speak_to(streams: tuple[str, str]) -> None:
    for number, name in enumerate(streams, start=1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)


def _interpret(words: list[str]) -> None:
    """Do what `python WORDS` does."""
    torch.set_num_threads(1)
    is_module = words[0] == "-m"
    sys.argv = words[1:] if is_module else words
    if is_module:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


def _agent(count: int, words: list[str]) -> None:
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, parse_args

    os.environ["OMP_NUM_THREADS"] = "1"  # otherwise the agent says in many lines that it sets this
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")  # what torchrun takes on one machine
    given = [*meeting, "--nproc-per-node", str(count), "--start-method", "forkserver", *words]
    config, _, _ = config_from_args(parse_args(given))
    streams = tuple(os.readlink(f"/proc/self/fd/{number}") for number in (1, 2))
    elastic_launch(config=config, entrypoint=_rank)(streams, words)


def _rank(streams: tuple[str, str], words: list[str]) -> None:
    heed_signals()
    _speak_to(streams)
    try:
        _interpret(words)
    except SystemExit as end:
        if end.code:  # a rank that has done its part returns to the agent
            raise
