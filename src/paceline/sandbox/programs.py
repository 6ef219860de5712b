"""Jobs, their outcomes, and the interface of a sandbox.

A job holds one input and no expected output: the expected output never comes near the program. Its outcome follows from
the zygote's reply.
"""

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from paceline.sandbox.inside.program import NO_FUNCTION, NO_MEMORY, NO_SYNTAX, VALUE
from paceline.sandbox.inside.watching import MOST_BYTES, MOST_ENTRIES

ExecutionStatus = Literal[
    "finished", "runtime_error", "syntax_error", "no_function", "timeout", "memory", "output_limit"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Resource limits of one execution."""

    seconds: float = 10.0
    """Seconds of processor time."""
    memory_mb: int = 512
    """MiB of address space beyond that of the bare interpreter."""
    output_bytes: int = 1 << 20
    """Bytes of standard output, or of a returned value as JSON. A file, and standard error, may have sixteen times as
    many; beyond 16 MiB, these or twice as many."""

    @property
    def wall_seconds(self) -> float:
        """Seconds on the clock: a program may also wait, and others use the processor too."""
        return max(2 * self.seconds, self.seconds + 3)


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A program and one input of it."""

    source: str
    """Source code in Python."""
    stdin: str = ""
    """Standard input, if `function` is None."""
    function: str | None = None
    """Function to call, or method of a class `Solution`; None: the program runs as `__main__`."""
    arguments: str = "[]"
    """JSON array of the positional arguments, with `function`."""
    limits: Limits = Limits()


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """Outcome of a job."""

    status: ExecutionStatus
    """`finished`: exit status 0 within the limits; the output may still be wrong."""
    output: str
    """Standard output, with invalid UTF-8 replaced; or the returned value as JSON."""
    error: str = ""
    """End of standard error, or the sandbox's message, for a person."""
    seconds: float
    """Seconds of processor time used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeResult:
    """Outcome of one piece of code in an interpreter."""

    output: str
    """Text that the code wrote, with the value of a last expression and the traceback of an exception; empty if the
    interpreter ended."""
    failed: bool = False
    """True if an exception or a status other than 0 ended the code."""
    ended: str | None = None
    """Reason why the interpreter ended and lost its variables: `stopped after 5 s of processor time`; None: it goes
    on."""
    seconds: float
    """Seconds of processor time used."""


class Interpreter(Protocol):
    """A Python interpreter that keeps its variables and files from one piece of code to the next."""

    def run(self, source: str) -> CodeResult:
        """Run one piece of code to its end. After one that ended the interpreter, the next gets a new one.

        Raises:
            SandboxError: the sandbox itself failed; nothing is known of the code.
        """

    def close(self) -> None:
        """End the interpreter with what it runs; may be called while another thread is in `run`."""


class Sandbox(Protocol):
    """Runner of untrusted programs, which knows nothing of expected outputs, verdicts or rewards."""

    @property
    def description(self) -> str:
        """Isolation in force, in a few words."""

    @property
    def slots(self) -> int:
        """Jobs that compute at the same time; any number of threads may call `execute`."""

    @property
    def callers(self) -> int:
        """Useful number of threads that call `execute`: more than `slots` if a sleeping job holds none."""

    def execute(self, job: Job, on_sleep: Callable[[], None] = lambda: None) -> Execution:
        """Run one job to its end; `on_sleep` is called when its program waits without computing, and holds no slot.

        Raises:
            SandboxError: the sandbox itself failed, also when tried again; nothing is known of the program.
        """

    def close(self) -> None:
        """End every process of the sandbox; it cannot be used afterwards."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """End of a program as the zygote reports it, with output within bounds."""

    how: str
    code: int
    seconds: float
    exceeded: bool
    stdout: bytes
    stderr: bytes
    report: bytes


TOO_MANY_FILES = f"more than {MOST_BYTES >> 20} MiB or {MOST_ENTRIES} names of files"
REPORTED: dict[bytes, ExecutionStatus] = {NO_SYNTAX: "syntax_error", NO_MEMORY: "memory", NO_FUNCTION: "no_function"}


def execution_of(job: Job, reply: Reply) -> Execution:
    """Convert a reply to its job's outcome. Whatever the program claims, it can only get one of its own outcomes."""
    status, reason = _status(job, reply)
    output = ""
    if job.function is None or status in ("finished", "output_limit"):
        output = (reply.stdout if job.function is None else reply.report[1:]).decode(errors="replace")
    error = "\n".join(part for part in (reply.stderr.decode(errors="replace").rstrip(), reason) if part)
    return Execution(status=status, output=output, error=error, seconds=reply.seconds)


def _status(job: Job, reply: Reply) -> tuple[ExecutionStatus, str]:
    """Return the status, and a sentence where standard error does not have the reason."""
    limits = job.limits
    if reply.how == "files":
        return "output_limit", TOO_MANY_FILES
    if reply.exceeded or (reply.how == "signalled" and reply.code == signal.SIGXFSZ):
        return "output_limit", f"more output than {limits.output_bytes} bytes, or sixteen times that in files"
    if reply.how == "timeout":
        return "timeout", (
            f"more than {limits.seconds:g} s of processor time, or more than {limits.wall_seconds:g} s on the clock"
        )
    if reply.how == "threads":
        return "runtime_error", "too many threads"
    if reply.how == "signalled":
        return "runtime_error", f"ended by {signal_name(reply.code)}"
    if reply.code != 0:
        return REPORTED.get(reply.report[:1], "runtime_error"), f"exit status {reply.code}"
    if job.function is not None:
        # The value of a call counts only if it is JSON: the program may write anything there.
        if reply.report[:1] != VALUE:
            return "runtime_error", "the program ended before its function returned"
        try:
            json.loads(reply.report[1:].decode())
        except (ValueError, RecursionError) as error:
            return "runtime_error", f"the value is no JSON that can be read: {error}"
    return "finished", ""


def signal_name(number: int) -> str:
    """Return the name of a signal, or words with its number.

    >>> signal_name(11), signal_name(40)
    ('SIGSEGV', 'signal 40')
    """
    return signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"
