"""Workers of Ray forked from a process that has loaded the libraries, which a new one imports for 8 s.

For tests of what a cluster does. Those of two nodes and of a program's own functions have Ray start its workers itself.
"""

import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy
import torch

from tests.support.forked import SERVER, heed_signals, shut_down

ADDRESS = "PACELINE_TEST_RAY_SERVER"


@contextmanager
def ray_server() -> Iterator[None]:
    """Have a server that forks workers, for all clusters of this process."""
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder, socket.socket(socket.AF_UNIX) as entrance:
        os.environ[ADDRESS] = str(Path(folder, "ray"))
        entrance.bind(os.environ[ADDRESS])
        entrance.listen(64)
        server: BaseProcess = SERVER.Process(target=_serve, args=(entrance,), daemon=True)
        server.start()
        try:
            yield
        finally:
            server.kill()
            server.join()
            del os.environ[ADDRESS]


@contextmanager
def forked_workers() -> Iterator[None]:
    """Have clusters that begin within it ask the server of `ray_server` for their workers."""
    from ray._private import ray_constants

    before = ray_constants.SETUP_WORKER_FILENAME
    # Ray joins it to its own folder and runs it with the words of each worker
    ray_constants.SETUP_WORKER_FILENAME = str(Path(__file__).with_name("ray_worker.py"))
    try:
        yield
    finally:
        ray_constants.SETUP_WORKER_FILENAME = before


def _serve(entrance: socket.socket) -> None:
    """Fork a worker for each request until the end; kill it when the process that asked for it is gone.

    Ray itself is loaded by each worker, in a third of a second: it reads the environment at that moment.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the run
    workers, ends = dict[socket.socket, int](), dict[int, tuple[socket.socket, int]]()
    parent = os.getppid()
    while os.getppid() == parent:  # else the tests were killed
        for source in select.select([entrance, *workers, *ends], [], [], 1.0)[0]:
            if source is entrance:
                asking, _ = entrance.accept()
                if (pid := _forked(asking, (entrance, *workers))) is None:
                    asking.close()
                else:
                    workers[asking] = pid
                    ends[os.pidfd_open(pid)] = asking, pid
            elif source in ends:
                os.close(source)
                asking, pid = ends.pop(source)
                workers.pop(asking, None)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with suppress(OSError), asking:
                    asking.sendall(bytes([status & 0xFF]))
            elif source in workers:
                os.kill(workers.pop(source), signal.SIGKILL)


def _forked(asking: socket.socket, others: tuple[socket.socket, ...]) -> int | None:
    """Identifier of the worker that a process asks for, which writes where that process does; None: it has ended."""
    size, streams, _, _ = socket.recv_fds(asking, 4, 3)
    with asking.makefile("rb") as stream:
        text = stream.read(int.from_bytes(size, "little"))
    if len(text) < int.from_bytes(size, "little") or not text:
        for stream_number in streams:
            os.close(stream_number)
        return None
    request = json.loads(text)
    if pid := os.fork():
        for stream_number in streams:
            os.close(stream_number)
        return pid
    try:
        for other in (asking, *others):
            other.close()
        for number, stream_number in enumerate(streams):
            os.dup2(stream_number, number)
            os.close(stream_number)
        heed_signals()
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        _work(request["words"])
        os._exit(0)
    except BaseException:  # noqa: BLE001 - not swallowed: it ends the process
        traceback.print_exc()
        os._exit(1)


def _work(words: list[str]) -> None:
    """Do what Ray's own starter does: it takes two options for itself."""
    torch.set_num_threads(1)  # OMP_NUM_THREADS, which Ray sets for each worker, was read when torch was loaded
    numpy.random.seed()  # a new interpreter's is
    sys.argv = [word for word in words if not word.startswith(("--serialized-runtime-env-context=", "--language="))]
    with suppress(SystemExit):
        runpy.run_path(sys.argv[0], run_name="__main__")
    shut_down()
