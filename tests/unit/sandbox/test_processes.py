"""Zygotes as processes: they are replaced, shared by threads, left alone by forks, and gone in the end."""

import contextlib
import errno
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paceline.errors import SandboxError
from paceline.processes.children import receive_message
from paceline.sandbox.inside.monitor import say_failure
from paceline.sandbox.local import LocalSandbox, Zygote, ZygoteError
from paceline.sandbox.programs import Job, Limits
from tests.unit.sandbox import sandboxes
from tests.unit.sandbox.sandboxes import LEVELS, opened, run, strongest

ENDLESS = "import threading\nthreading.Event().wait()"
EARLIER = set[int]()
"""Processes of the sandbox that other tests of this process share, which stays open to its end."""


@pytest.fixture(autouse=True)
def _earlier() -> None:
    EARLIER.clear()
    EARLIER.update(sandboxes.children())


def children() -> set[int]:
    """Processes of the sandboxes of one test."""
    return sandboxes.children() - EARLIER


@pytest.fixture
def temporary(monkeypatch) -> Iterator[Path]:
    """A directory for scratch directories that every user may enter: a killed monitor leaves its own behind."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


@pytest.fixture(params=LEVELS)
def sandbox(request, temporary) -> Iterator[LocalSandbox]:
    sandbox = opened(request.param, slots=2)
    yield sandbox
    sandbox.close()


def kill_all() -> None:
    """Kill every process of every sandbox and wait until none is left."""
    descriptors = []
    for pid in children():
        with contextlib.suppress(ProcessLookupError):  # it ended with its parent
            descriptors.append(os.pidfd_open(pid))
    # All are stopped before any is killed: a zygote that outlives its program by a moment reports the program's end.
    for sent in (signal.SIGSTOP, signal.SIGKILL):
        for descriptor in descriptors:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, sent)
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], 30)[0]
        os.close(descriptor)


def test_a_killed_zygote_is_replaced(sandbox):
    assert run(sandbox, "print(1)").output == "1\n"
    kill_all()
    assert run(sandbox, "print(2)").output == "2\n"


@pytest.mark.long
def test_a_zygote_killed_while_it_runs_a_program_is_replaced_and_the_program_run_again(sandbox):
    before = children()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run, sandbox, "import time\ntime.sleep(1)\nprint('done')")
        while children() == before:
            pass
        kill_all()
        assert waiting.result().output == "done\n"


def test_threads_share_the_slots(sandbox):
    with ThreadPoolExecutor(8) as pool:
        outputs = list(pool.map(lambda n: run(sandbox, f"print({n})").output, range(40)))
    assert outputs == [f"{n}\n" for n in range(40)]


def test_a_program_that_sleeps_gives_its_slot_to_another(temporary):
    sandbox = LocalSandbox(strongest(), 1)
    asleep = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(sandbox.execute, Job(source=ENDLESS, limits=Limits(seconds=100)), asleep.set)
        assert asleep.wait(30)
        assert run(sandbox, "print(1)").output == "1\n"
        assert not waiting.done()
        sandbox.close()
        with pytest.raises(SandboxError):
            waiting.result()


def test_a_zygote_outlives_the_thread_that_started_it():
    sandbox = LocalSandbox(strongest(), 1)
    thread = threading.Thread(target=run, args=(sandbox, "print(1)"))
    thread.start()
    thread.join()
    first = children()
    assert run(sandbox, "print(2)").output == "2\n"
    assert children() == first
    sandbox.close()


def test_closing_leaves_no_process_and_no_file(sandbox, temporary):
    run(sandbox, "print(1)")
    assert children()
    sandbox.close()
    assert not children()
    assert not list(temporary.iterdir())
    with pytest.raises(SandboxError, match="closed"):
        run(sandbox, "print(1)")


def test_closing_ends_what_still_runs(sandbox):
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run, sandbox, ENDLESS, limits=Limits(seconds=100))
        while not sandbox._busy:
            pass
        sandbox.close()
        with pytest.raises(SandboxError):
            waiting.result()
    assert not children()


WRITING = """
import itertools, threading
slow_to_end = bytearray(200 << 20)
slow_to_end[::4096] = bytes(len(slow_to_end) // 4096)
def write(name):
    for number in itertools.count():
        open(f"{name}.{number % 40}", "w").write("x")
for name in range(20):
    threading.Thread(target=write, args=(name,)).start()
open("ready", "w")
"""


def test_closing_leaves_nothing_of_a_program_that_writes_files(sandbox, temporary):
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run, sandbox, WRITING, limits=Limits(seconds=100, memory_mb=1000))
        while sandbox._level != "namespaces" and not list(temporary.glob("*/ready")):
            assert not waiting.done()
        sandbox.close()
        with pytest.raises(SandboxError):
            waiting.result()
    assert not list(temporary.iterdir())


def test_what_a_killed_monitor_left_is_removed_at_the_next_start(temporary):
    first, second, third = (LocalSandbox("none", 1) for _ in range(3))
    run(first, "open('left', 'w')")
    kill_all()
    (left,) = temporary.iterdir()
    run(second, "print(1)")
    (held,) = temporary.iterdir()
    assert held != left
    run(third, "print(1)")
    assert held in temporary.iterdir()
    for sandbox in (first, second, third):
        sandbox.close()
    assert not list(temporary.iterdir())


def test_a_program_that_cannot_be_started_says_why(temporary):
    zygote = Zygote("none")
    for scratch in temporary.iterdir():
        scratch.rmdir()
    with pytest.raises(ZygoteError, match=r"a program could not be started: FileNotFoundError: .*paceline-scratch"):
        zygote.run(Job(source="print(1)"), lambda: None)
    zygote.end()


def test_where_no_process_can_be_started_the_remedy_is_told():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        say_failure(theirs, BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)))
        assert "no further process may be started here: raise `ulimit -u`" in receive_message(ours)["failed"]


def test_a_fork_of_the_trainer_starts_zygotes_of_its_own(sandbox):
    run(sandbox, "print(1)")
    ours = children()
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        output = run(sandbox, "print('in the fork')").output
        os.write(told, output.encode())
        sandbox.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(ready, 100) == b"in the fork\n"
    assert children() == ours
    assert run(sandbox, "print(2)").output == "2\n"
    os.close(ready)
    os.close(told)


def test_a_sandbox_by_pickle_is_a_sandbox_of_the_same_level(sandbox):
    other = pickle.loads(pickle.dumps(sandbox))  # noqa: S301
    assert run(other, "print(1)").output == "1\n"
    assert (other.description, other.slots) == (sandbox.description, sandbox.slots)
    other.close()


TRAINER = """
import sys, threading
from paceline.sandbox.programs import Job, Limits
from paceline.sandbox.local import LocalSandbox
sandbox = LocalSandbox(sys.argv[1], 2)
sandbox.execute(Job(source="print(1)"))
threading.Thread(target=sandbox.execute, args=(Job(source=sys.argv[2], limits=Limits(seconds=100)),)).start()
while not sandbox._busy: pass
print("running", flush=True)
threading.Event().wait()
"""


def test_zygotes_die_with_a_trainer_that_is_killed(sandbox, temporary):
    command = [sys.executable, "-c", TRAINER, sandbox._level, ENDLESS]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    before = set(temporary.iterdir())
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "running\n"
        zygotes = [os.pidfd_open(pid) for pid in sandboxes.children(trainer.pid)]
        assert len(zygotes) >= 2
        trainer.kill()
        for descriptor in zygotes:
            assert select.select([descriptor], [], [], 30)[0]
            os.close(descriptor)
    assert set(temporary.iterdir()) == before


def test_a_zygote_that_cannot_start_is_an_error_of_the_sandbox(monkeypatch):
    monkeypatch.setattr(sys, "_base_executable", "/nowhere/python")
    sandbox = LocalSandbox("none", 1)
    with pytest.raises(SandboxError, match="failed 3 times on one program: /nowhere/python cannot be started"):
        run(sandbox, "print(1)")
