"""The zygote: loads Python's usual modules, takes jobs from its channel and forks one child for each.

It never reads a job: the child takes it from the channel itself, and the kernel passes on what the child wrote. So
nothing of one program is in the memory that the next one inherits.

An interpreter is a child that gets a channel of its own from the trainer, for code and what it wrote. Here it is
watched during each call, and stopped between two of them, so that its threads do not compute while nobody waits.
"""

import gc
import importlib
import math
import os
import select
import signal
import socket
import time
from typing import Any, NamedTuple

from paceline.processes.children import (
    BrokenChannelError,
    adopt_orphans,
    die_with_parent,
    end_children,
    receive_message,
    send_message,
)
from paceline.processes.scratch import make_empty
from paceline.sandbox.inside import kernel
from paceline.sandbox.inside.confining import Confinement, Identity, confine
from paceline.sandbox.inside.starting import MOST_SAID, STARTED, Files, largest_file, start
from paceline.sandbox.inside.watching import excess

USUAL_MODULES = (
    *("array", "bisect", "calendar", "cmath", "collections", "contextlib", "copy", "dataclasses", "datetime"),
    *("decimal", "enum", "fractions", "functools", "heapq", "io", "itertools", "json", "linecache", "math"),
    *("numbers", "operator", "os", "queue", "random", "re", "statistics", "string", "struct", "sys", "tempfile"),
    *("textwrap", "threading", "time", "traceback", "types", "typing"),
)
"""Modules loaded once, and therefore free for every program."""

ASLEEP = {"asleep": True}
"""Message about a running program that waits without computing, sent once."""
STDERR_BYTES = 4096  # Bytes kept from the end of standard error
ABANDONED, ANSWERED, CLOSED = "abandoned", "answered", "closed"
TIMEOUT, CLOCK = "timeout", "clock"  # Over the limit of processor time; over that on the clock, and below the other
WATCH_SECONDS = 0.05
SHORTEST_WAIT = 0.005
NAP_SECONDS, NAP_SHARE = 0.25, 0.05
"""A program sleeps if it computes for less than this share of this time. One that is waiting for a processor gets more,
unless twenty others want each."""


class End(NamedTuple):
    """How a child ended: `exited` or `signalled` with a code, or the reason why the zygote stopped it."""

    how: str
    code: int
    seconds: float


def serve(control: socket.socket, level: str, scratch: str, identity: Identity, monitor: int) -> None:
    """Take on the confinement, report it, and run jobs until the other end is closed; raises OSError if it cannot."""
    kernel.share_one_heap()
    statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    confinement = confine(level, scratch, identity)
    # The kernel kills this process when its parent, the monitor, ends; here, if it already has.
    die_with_parent()
    if select.select([monitor], [], [], 0)[0]:
        os._exit(0)
    os.close(monitor)
    adopt_orphans()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the first process of a namespace is deaf to all but what it handles
    os.dup2(0, 1)
    os.dup2(0, 2)
    for name in USUAL_MODULES:
        importlib.import_module(name)
    memory = int(os.pread(statm, 100, 0).split()[0]) * os.sysconf("SC_PAGE_SIZE")
    os.close(statm)
    gc.collect()
    gc.freeze()
    send_message(control, {"ready": confinement.description})
    try:
        while True:
            limits = receive_message(control)
            if ANSWERED in limits:  # it crossed with the end of the interpreter
                continue
            (_run_interpreter if "interpreter" in limits else _run_job)(control, limits, confinement, memory)
    except BrokenChannelError:
        return


def _run_job(control: socket.socket, limits: dict[str, Any], confinement: Confinement, memory: int) -> None:
    files = _files(confinement, os.memfd_create("report"))
    pid, ready = _forked(control, files, limits, confinement, memory)
    stopped = _watch(pid, control, limits, confinement, is_interpreter=False)
    end = _reap(pid, TIMEOUT if stopped == CLOCK else stopped, limits["seconds"])
    _check_started(ready)
    if not confinement.filter:
        end_children()
    _reply(control, end, files, limits["output_bytes"])
    os.close(files.report)
    _leave_nothing(files, confinement)


def _run_interpreter(control: socket.socket, limits: dict[str, Any], confinement: Confinement, memory: int) -> None:
    _, channels, _, _ = socket.recv_fds(control, 1, 1)
    if not channels:
        raise BrokenChannelError("no channel for an interpreter")
    files = _files(confinement, channels[0])
    pid, ready = _forked(control, files, limits, confinement, memory)
    os.close(channels[0])
    _check_started(ready)
    os.kill(pid, signal.SIGSTOP)
    send_message(control, {"started": True})
    stopped, before = None, 0.0
    while CLOSED not in (call := receive_message(control)):
        # One call: its seconds are counted from here, by the clock of the whole process.
        before = _processor_seconds(pid)
        os.kill(pid, signal.SIGCONT)
        watched = {**limits, **call, "seconds": before + call["seconds"]}
        stopped = _watch(pid, control, watched, confinement, is_interpreter=True)
        if stopped != ANSWERED:
            break
        os.kill(pid, signal.SIGSTOP)
        receive_message(control)
        reply = End(ANSWERED, 0, _processor_seconds(pid) - before)._asdict()
        send_message(control, {**reply, "files": _bytes_in_memory(confinement)})
    end = _reap(pid, CLOSED if CLOSED in call else stopped, limits["seconds"])
    if not confinement.filter:
        end_children()
    _leave_nothing(files, confinement)
    send_message(control, end._replace(seconds=end.seconds - before)._asdict())


def _bytes_in_memory(confinement: Confinement) -> int:
    """Return the bytes of a program's files that lie in memory: those of a file system of its own."""
    if confinement.streams is None:
        return 0
    status = os.statvfs(confinement.scratch)
    return status.f_frsize * (status.f_blocks - status.f_bfree)


def _files(confinement: Confinement, report: int) -> Files:
    names, again = ("stdin", "stdout", "stderr"), None
    streams = confinement.streams
    if streams is None:
        streams, again = {name: os.memfd_create(name) for name in names}, "/proc/self/fd/{}"
    return Files(streams["stdin"], streams["stdout"], streams["stderr"], report, again)


def _forked(
    control: socket.socket, files: Files, limits: dict[str, Any], confinement: Confinement, memory: int
) -> tuple[int, int]:
    """Fork a child that runs the next job; return its process number, and the pipe on which it reports its start."""
    ready, started = os.pipe()
    pid = os.fork()
    if pid == 0:
        start(control, files, started, limits, confinement, memory)
    os.close(started)
    return pid, ready


def _check_started(ready: int) -> None:
    message = os.read(ready, MOST_SAID)
    if message != STARTED:
        raise OSError(f"a program could not be started: {message.decode(errors='replace') or 'it was killed before'}")
    os.close(ready)


def _leave_nothing(files: Files, confinement: Confinement) -> None:
    """Clear all traces of this program, so that the next one cannot read them."""
    if confinement.streams is None:
        for descriptor in (files.stdin, files.stdout, files.stderr):
            os.close(descriptor)
    else:
        for descriptor in confinement.streams.values():
            os.ftruncate(descriptor, 0)
            if os.fstat(descriptor).st_uid == os.geteuid():  # then it is the program's too, and it may have barred it
                os.fchmod(descriptor, 0o666)
                os.utime(descriptor, ns=(0, 0))  # where 126 bits of a program's own would stay
    make_empty(confinement.scratch)
    os.utime(confinement.scratch, ns=(0, 0))


def _watch(
    pid: int, control: socket.socket, limits: dict[str, Any], confinement: Confinement, *, is_interpreter: bool
) -> str | None:
    """Wait for the end of a child, or of an interpreter's call; return why it has to be stopped, None if it ended.

    An interpreter's code that computes has `busy_seconds` on the clock: on a busy machine it is not at fault.
    """
    child = os.pidfd_open(pid)
    events = select.poll()
    events.register(child, select.POLLIN)
    events.register(control, select.POLLRDHUP | (select.POLLIN if is_interpreter else 0))
    began = time.monotonic()
    deadline = began + limits["wall_seconds"]
    busy_deadline = began + limits["busy_seconds"] if is_interpreter else deadline
    stopped, is_asleep = None, False
    looked, used_then = time.monotonic(), _processor_seconds(pid)
    while stopped is None:
        now = time.monotonic()
        used = _processor_seconds(pid)
        left = min(limits["seconds"] - used, (deadline if is_asleep else busy_deadline) - now)
        if left <= 0:
            stopped = TIMEOUT if limits["seconds"] <= used else CLOCK
            break
        if not is_asleep and now - looked >= NAP_SECONDS:
            is_asleep = used - used_then < NAP_SHARE * (now - looked)
            looked, used_then = now, used
            if is_asleep:
                send_message(control, ASLEEP)
        wait = min(left, WATCH_SECONDS) if confinement.watched else left
        wait = wait if is_asleep else min(wait, NAP_SECONDS)
        ready = dict(events.poll(math.ceil(1000 * max(wait, SHORTEST_WAIT))))
        if child in ready:
            break
        if ready:
            gone = select.POLLRDHUP | select.POLLHUP
            stopped = ANSWERED if is_interpreter and not ready[control.fileno()] & gone else ABANDONED
        elif confinement.watched:
            stopped = excess(pid, confinement.scratch, largest_file(limits["output_bytes"]))
    os.close(child)
    return stopped


def _processor_seconds(pid: int) -> float:
    """Return the processor time of a child; 0.0 if it has just ended."""
    clock = ~pid << 3 | 2  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED)
    try:
        return time.clock_gettime(clock)
    except OSError:
        return 0.0


def _reap(pid: int, stopped: str | None, seconds: float) -> End:
    if stopped is not None:
        os.kill(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    code, used = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
    if stopped == ABANDONED:
        raise BrokenChannelError("nobody waits for this job")
    if stopped is not None:
        return End(stopped, 0, used)
    if code == -signal.SIGXCPU or (code == -signal.SIGKILL and used >= seconds):
        return End(TIMEOUT, 0, used)
    return End("exited", code, used) if code >= 0 else End("signalled", -code, used)


def _reply(control: socket.socket, end: End, files: Files, output_bytes: int) -> None:
    """Report how a child ended; the kernel passes on its output, which never enters this process."""
    sizes = {name: os.fstat(getattr(files, name)).st_size for name in ("stdout", "stderr", "report")}
    exceeded = (
        sizes["stdout"] > output_bytes
        or sizes["report"] > output_bytes + 1
        or sizes["stderr"] >= largest_file(output_bytes)
    )
    parts = {
        "stdout": (0, min(sizes["stdout"], output_bytes)),
        "stderr": (max(0, sizes["stderr"] - STDERR_BYTES), min(sizes["stderr"], STDERR_BYTES)),
        "report": (0, min(sizes["report"], output_bytes + 1)),
    }
    lengths = {name: length for name, (_, length) in parts.items()}
    send_message(control, {**end._asdict(), "exceeded": exceeded, **lengths})
    for name, (offset, length) in parts.items():
        while length > 0:
            sent = os.sendfile(control.fileno(), getattr(files, name), offset, length)
            if sent == 0:
                raise BrokenChannelError("a file shrank while it was sent")
            offset, length = offset + sent, length - sent
