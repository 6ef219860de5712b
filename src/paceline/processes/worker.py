"""A worker process of a pool: it loads code once, and forks a child that computes, until its input ends.

One line of JSON in, one out. The kernel ends the child by SIGPROF when a request has used its processor time, so the
deadline holds whatever the interpreter does. The next child starts in milliseconds.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from paceline.processes.children import die_with_parent

MEMORY_BYTES = 1 << 30  # Address space beyond what the process has once the code is loaded
REQUESTS_PER_CHILD = 2000
GROWTH_BYTES = 200 << 20
"""A child ends after so many requests, or when its memory has grown by so much: libraries keep what they compute."""
MAX_LINE = 1 << 16  # Bytes of one line, in both directions: two texts of 4096 characters, escaped
INPUT_ENDED, GO_ON = 0, 3  # Exit statuses of a child. 1 is the interpreter's own, for an unexpected exception.
SECONDS = "seconds"
"""Field of a request with its processor time."""
READY, FAILED, TIMEOUT = "ready", "failed", "timeout"
"""Fields of a worker's first message, loaded or not, and of the reply to a request whose time was over."""


Compute = Callable[[dict[str, Any]], dict[str, object]]


def work(load: Callable[[], None], compute: Compute, timeout: dict[str, object]) -> None:
    """Answer every line of standard input on standard output, for the process whose number is the first argument.

    `load` loads whatever is loaded at first use, before a deadline counts; each child inherits it.
    `timeout` is the reply to a request that has used its processor time.
    """
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    # Whatever a library prints goes nowhere; an interrupt at the terminal is for the parent.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _end_with(int(sys.argv[1]))
    try:
        load()
    except ImportError as error:
        _reply(replies, {FAILED: str(error)})
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES,) * 2)
    _reply(replies, {READY: True})
    while _outlive_a_child(requests, replies, compute, timeout):
        pass


def _outlive_a_child(requests: BinaryIO, replies: BinaryIO, compute: Compute, timeout: dict[str, object]) -> bool:
    """Fork a child, answer for it when its time is over; whether there is more to do.

    One that dies takes this process with it: whether it had read the next line already nobody knows, and a reply to
    it must not be taken for the reply to another.
    """
    parent = os.getpid()
    child = os.fork()
    if not child:
        _end_with(parent)
        os._exit(_serve(requests, replies, compute))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == -signal.SIGPROF:
        _reply(replies, {**timeout, TIMEOUT: True})
    elif status not in (INPUT_ENDED, GO_ON):
        os._exit(status if status > 0 else 128 - status)
    return status != INPUT_ENDED


def _serve(requests: BinaryIO, replies: BinaryIO, compute: Compute) -> int:
    limit = _resident_bytes() + GROWTH_BYTES
    for _ in range(REQUESTS_PER_CHILD):
        line = requests.readline(MAX_LINE)
        if not line:
            return INPUT_ENDED
        request = json.loads(line.decode("utf-8", "surrogatepass"))
        signal.setitimer(signal.ITIMER_PROF, request[SECONDS])
        reply = compute(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _reply(replies, reply)
        if _resident_bytes() > limit:
            break
    return GO_ON


def _reply(replies: BinaryIO, message: dict[str, object]) -> None:
    replies.write(json.dumps(message).encode() + b"\n")


def _end_with(parent: int) -> None:
    """Die with the thread that started this process. Elsewhere than on Linux the end of the input has to do."""
    if sys.platform == "linux":
        die_with_parent()
    if os.getppid() != parent:
        os._exit(0)


def _resident_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
