"""A worker process of `proving`: judges pairs by the rules, symbolic one included, until its input ends.

One line of JSON in, one out. The process loads the algebra once and forks a child that does the work. The kernel ends
the child by SIGPROF when a pair has used its processor time, so the deadline holds whatever the interpreter does.
The next child starts in milliseconds. `proving.COMMAND` runs it.
"""

import ctypes
import json
import os
import resource
import signal
import sys
from dataclasses import asdict
from typing import Any, BinaryIO

from paceline.rewards.maths.equality import decide, recognises
from paceline.rewards.maths.symbolic import parses, prove

MEMORY_BYTES = 1 << 30  # Address space beyond what the process has once the algebra is loaded
PAIRS_PER_CHILD = 2000
GROWTH_BYTES = 200 << 20
"""A child ends after so many pairs, or when its memory has grown by so much: sympy keeps what it has computed."""
MAX_LINE = 1 << 16  # Bytes of one line, in both directions: two texts of 4096 characters, escaped
INPUT_ENDED, GO_ON = 0, 3  # Exit statuses of a child. 1 is the interpreter's own, for an exception that nobody foresaw.

_PR_SET_PDEATHSIG = 1
_USUAL = (
    ("x^2-1", "(x-1)(x+1)"),
    (r"\sqrt{2}+\frac{\pi}{3}", r"\frac{\pi}{3}+2^{1/2}"),
    (r"\frac{2}{\sqrt{3}}", r"\frac{2\sqrt{3}}{3}"),
    (r"y=2x+3", r"2x-y+3=0"),
    (r"e^{x}\sin 2x", r"2e^x\sin x\cos x"),
    (r"\ln 8", r"3\ln 2"),
)


def main() -> None:
    """Answer every line of standard input on standard output."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    # Whatever a library prints goes nowhere; an interrupt at the terminal is for the parent.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _end_with(int(sys.argv[1]))
    try:
        # Loads the package and whatever it loads at first use, before a deadline counts; each child inherits it.
        for gold, answer in _USUAL:
            prove(gold, answer)
    except ImportError as error:
        _reply(replies, {"failed": str(error)})
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES,) * 2)
    _reply(replies, {"ready": True})
    while _outlive_a_child(requests, replies):
        pass


def _outlive_a_child(requests: BinaryIO, replies: BinaryIO) -> bool:
    """Fork a child, answer for it when its time is over; whether there is more to do.

    One that dies takes this process with it: whether it had read the next line already nobody knows, and an answer to
    it must not be taken for the answer to another.
    """
    parent = os.getpid()
    child = os.fork()
    if not child:
        _end_with(parent)
        os._exit(_serve(requests, replies))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == -signal.SIGPROF:
        _reply(replies, {"equal": False, "rule": "timeout"})
    elif status not in (INPUT_ENDED, GO_ON):
        os._exit(status if status > 0 else 128 - status)
    return status != INPUT_ENDED


def _serve(requests: BinaryIO, replies: BinaryIO) -> int:
    limit = _resident_bytes() + GROWTH_BYTES
    for _ in range(PAIRS_PER_CHILD):
        line = requests.readline(MAX_LINE)
        if not line:
            return INPUT_ENDED
        request = json.loads(line.decode("utf-8", "surrogatepass"))
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])
        result = _judge(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _reply(replies, result)
        if _resident_bytes() > limit:
            break
    return GO_ON


def _judge(request: dict[str, Any]) -> dict[str, object]:
    from sympy.core.random import seed

    seed(0)  # sympy tries expressions at random points: the same ones for a pair, whatever was judged before it
    try:
        if "answer" in request:
            verdict = decide(request["gold"], request["answer"], prove)
            return asdict(verdict) if verdict else {"equal": False, "rule": "symbolic"}
        return {"equal": bool(recognises(request["gold"], parses)), "rule": "symbolic"}
    except (MemoryError, RecursionError):  # the answer's own computation took them: it is not shown to be equal
        return {"equal": False, "rule": "symbolic"}


def _reply(replies: BinaryIO, message: dict[str, object]) -> None:
    replies.write(json.dumps(message).encode() + b"\n")


def _end_with(parent: int) -> None:
    """Die with the thread that started this process. Elsewhere than on Linux the end of the input has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _resident_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
