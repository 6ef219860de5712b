"""The forked child before the program: takes the job, arranges files, takes on limits and filter."""

import json
import math
import os
import resource
import signal
import socket
from typing import Any, NamedTuple, NoReturn

from paceline.processes.children import PREFIX, die_with_parent, receive_bytes
from paceline.sandbox.inside import filtering, kernel, landlock
from paceline.sandbox.inside.confining import Confinement
from paceline.sandbox.inside.program import PROGRAM_FILE, call_function, run_interpreter, run_main
from paceline.sandbox.inside.watching import MOST_THREADS

STARTED = b"s"  # Written when everything is in place, into a pipe the program does not have: it cannot claim otherwise
MOST_SAID = 500  # Most bytes of a reason written there instead, if something could not be put in place
REPORT = 3  # Descriptor of the private file for the program's result
BEFORE_REPORT, RULES, LAST = 61, 62, 63  # Temporary places of descriptors; the zygote has far fewer open
ALL_DESCRIPTORS = 1 << 20
OPEN_FILES = 64
PENDING_SIGNALS = 64
"""Limit of pending signals: the kernel counts them by user, and timers of the user's other processes need some."""
NO_CORE = 1  # Limit of core dumps in bytes: at 0 the kernel still starts the host's dump program, at 1 it makes no dump
STACK_BYTES = 128 << 20  # Bytes of the main thread's stack; the kernel leaves this much room below it
FILES_PER_OUTPUT, LARGE_FILE = 16, 16 << 20  # Factor and threshold of `largest_file`


class Files(NamedTuple):
    """Descriptors of one job's files."""

    stdin: int
    stdout: int
    stderr: int
    report: int
    """File for the program's result; or the channel of an interpreter, whose standard error is its standard output."""
    path: str | None
    """Path under which a descriptor can be opened again; None: /dev/stdin, stdout and stderr are these files."""


def start(
    control: socket.socket, files: Files, started: int, limits: dict[str, Any], confinement: Confinement, memory: int
) -> NoReturn:
    """Run the next job on the channel; never returns."""
    try:
        os.dup2(started, LAST)
        (length,) = PREFIX.unpack(receive_bytes(control, PREFIX.size))
        job = json.loads(receive_bytes(control, length))
        control.close()
        die_with_parent()
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
    if "seed" in job:
        run_interpreter(REPORT, job["seed"], job["shown_bytes"])
    if job["function"] is None:
        run_main(job["source"], REPORT)
    call_function(job["source"], job["function"], job["arguments"], REPORT)


def _arrange(files: Files, job: dict[str, Any], confinement: Confinement) -> None:
    """Arrange standard streams and the program file; besides, only the report and two descriptors stay open."""
    os.chdir(confinement.scratch)
    os.environ.clear()
    os.environ.update(HOME=confinement.scratch, TMPDIR=confinement.scratch)
    _write(files.stdin, job["stdin"])
    source = os.open(PROGRAM_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    _write(source, job["source"])
    flags = os.O_WRONLY | os.O_APPEND
    opened = [_open_again(files, "stdin", os.O_RDONLY), _open_again(files, "stderr", flags)]
    if "seed" in job:
        opened[1:] = [_open_again(files, "stdout", os.O_RDWR | os.O_APPEND)] * 2
    else:
        quiet = job["function"] is not None
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
    """Open a file again, for an offset and rights of its own."""
    return os.open(f"/dev/{name}" if files.path is None else files.path.format(getattr(files, name)), flags)


def _limit(limits: dict[str, Any], confinement: Confinement, memory: int) -> None:
    """Set the kernel's own limits; wall time and fractions of a second are the zygote's business."""
    others = 0
    if not confinement.threads_counted:  # all threads of the machine count then, and no lower limit is safe
        with open("/proc/loadavg") as file:
            others = int(file.read().split()[3].partition("/")[2])
    wanted = {
        resource.RLIMIT_CPU: math.ceil(limits["seconds"]) + 1,
        resource.RLIMIT_AS: memory + (limits["memory_mb"] << 20),
        resource.RLIMIT_FSIZE: largest_file(limits["output_bytes"]),
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_NPROC: MOST_THREADS + others,
        resource.RLIMIT_SIGPENDING: PENDING_SIGNALS,
        resource.RLIMIT_CORE: NO_CORE,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_STACK: STACK_BYTES,
    }
    for kind, value in wanted.items():  # as far as a process that may not raise them can
        _, most = resource.getrlimit(kind)
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(kind, (value, most if kind == resource.RLIMIT_STACK else value))


def largest_file(output_bytes: int) -> int:
    """Return the most bytes of a file, and of standard error: sixteen times the output, above 16 MiB twice."""
    return max(min(FILES_PER_OUTPUT * output_bytes, LARGE_FILE), 2 * output_bytes)
