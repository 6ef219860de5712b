"""The forked child on its way to the program: takes the job, arranges files, takes on limits and filter."""

import json
import math
import os
import resource
import signal
import socket
from typing import Any, NamedTuple, NoReturn

from paceline.sandbox.inside import filtering, kernel, landlock
from paceline.sandbox.inside.calling import call_function
from paceline.sandbox.inside.channel import PREFIX, receive_bytes
from paceline.sandbox.inside.confining import Confinement
from paceline.sandbox.inside.program import PROGRAM_FILE, run_main

STARTED = b"s"
"""Written when everything is in place, into a pipe that the program does not have: it cannot claim otherwise."""
MOST_SAID = 500
"""Bytes written there instead where something could not be put in place: why."""
REPORT = 3
"""The descriptor of the private file for what the program came to."""
BEFORE_REPORT, RULES, LAST = 61, 62, 63
"""Where descriptors wait for their place; the zygote has far fewer open."""
ALL_DESCRIPTORS = 1 << 20
OPEN_FILES = 64
THREADS = 256
PENDING_SIGNALS = 64
"""With data; the kernel counts them by user, and timers of the user's other processes need some."""
NO_CORE = 1
"""Byte. At 0, the kernel still starts the host's program for dumps where it has one; 1 it takes for no dump at all."""
STACK_BYTES = 128 << 20
"""Of the main thread; the kernel leaves so much room below it."""
FILES_PER_OUTPUT, LARGE_FILE = 16, 16 << 20
"""See `largest_file`."""


class Files(NamedTuple):
    """Descriptors of one job's files."""

    stdin: int
    stdout: int
    stderr: int
    report: int
    path: str | None
    """Under which path a descriptor can be opened again; None: /dev/stdin and its sisters are these files."""


def start(
    control: socket.socket, files: Files, started: int, limits: dict[str, Any], confinement: Confinement, memory: int
) -> NoReturn:
    """Run the job that comes next on the channel; never returns, whatever happens."""
    try:
        os.dup2(started, LAST)
        (length,) = PREFIX.unpack(receive_bytes(control, PREFIX.size))
        job = json.loads(receive_bytes(control, length))
        control.close()
        kernel.control_process(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        _arrange(files, job, confinement)
        _limit(limits, confinement, memory)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        program = None if confinement.filter is None else filtering.for_process(confinement.filter, os.getpid())
        if confinement.rules is not None:
            kernel.control_process(kernel.PR_SET_DUMPABLE, 1)  # the zygote has to see its open files
            landlock.enforce(RULES)
            os.close(RULES)
        if program is not None:
            kernel.install_filter(program)
        os.write(LAST, STARTED)
        os.close(LAST)
    except BaseException as error:  # noqa: BLE001
        try:
            os.write(LAST, f"{type(error).__name__}: {error}".encode(errors="replace")[:MOST_SAID])
        finally:
            os._exit(70)
    if job["function"] is None:
        run_main(job["source"], REPORT)
    call_function(job["source"], job["function"], job["arguments"], REPORT)


def _arrange(files: Files, job: dict[str, Any], confinement: Confinement) -> None:
    """Standard streams, the program's file, and nothing else open but the report and two descriptors for a moment."""
    os.chdir(confinement.scratch)
    os.environ.clear()
    os.environ.update(HOME=confinement.scratch, TMPDIR=confinement.scratch)
    _write(files.stdin, job["stdin"])
    source = os.open(PROGRAM_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    _write(source, job["source"])
    opened = [_open_again(files, "stdin", os.O_RDONLY), _open_again(files, "stderr", os.O_WRONLY | os.O_APPEND)]
    quiet = job["function"] is not None
    flags = os.O_WRONLY | os.O_APPEND
    opened.insert(1, os.open(os.devnull, flags) if quiet else _open_again(files, "stdout", flags))
    if confinement.rules is not None:
        os.dup2(confinement.rules, RULES)
    os.dup2(files.report, BEFORE_REPORT)
    for number, descriptor in enumerate(opened):
        os.dup2(descriptor, number)
    os.dup2(BEFORE_REPORT, REPORT)
    os.closerange(REPORT + 1, RULES)
    os.closerange(LAST + 1, ALL_DESCRIPTORS)


def _write(descriptor: int, text: str) -> None:
    data = memoryview(text.encode("utf-8", "surrogatepass"))
    written = 0
    while written < len(data):  # by position: the descriptor's own stands where the last job's input ended
        written += os.pwrite(descriptor, data[written:], written)


def _open_again(files: Files, name: str, flags: int) -> int:
    """A descriptor with an offset and rights of its own."""
    return os.open(f"/dev/{name}" if files.path is None else files.path.format(getattr(files, name)), flags)


def _limit(limits: dict[str, Any], confinement: Confinement, memory: int) -> None:
    """The kernel's own limits; the clock on the wall and fractions of a second are the zygote's business."""
    seconds = math.ceil(limits["seconds"]) + 1
    _hold(resource.RLIMIT_CPU, seconds)
    _hold(resource.RLIMIT_AS, memory + (limits["memory_mb"] << 20))
    _hold(resource.RLIMIT_FSIZE, largest_file(limits["output_bytes"]))
    _hold(resource.RLIMIT_NOFILE, OPEN_FILES)
    _hold(resource.RLIMIT_NPROC, THREADS + (0 if confinement.threads_counted else _threads_of_the_machine()))
    _hold(resource.RLIMIT_SIGPENDING, PENDING_SIGNALS)
    _hold(resource.RLIMIT_CORE, NO_CORE)
    for kind in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE):
        _hold(kind, 0)
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    room = STACK_BYTES if most == resource.RLIM_INFINITY else min(STACK_BYTES, most)
    resource.setrlimit(resource.RLIMIT_STACK, (room, most))


def largest_file(output_bytes: int) -> int:
    """Bytes of a file, and of standard error, at most: sixteen times the output, beyond 16 MiB twice."""
    return max(min(FILES_PER_OUTPUT * output_bytes, LARGE_FILE), 2 * output_bytes)


def _threads_of_the_machine() -> int:
    """All threads there are: where those of other programs count too, no lower limit is safe."""
    with open("/proc/loadavg") as file:
        return int(file.read().split()[3].partition("/")[2])


def _hold(kind: int, value: int) -> None:
    """Set both limits, as far as one who may not raise them can."""
    _, most = resource.getrlimit(kind)
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(kind, (value, value))
