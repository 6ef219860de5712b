"""Outcome of a job by the zygote's reply."""

import json
import signal
from dataclasses import dataclass

from paceline.sandbox.inside.program import NO_FUNCTION, NO_MEMORY, NO_SYNTAX, VALUE
from paceline.sandbox.inside.watching import MOST_BYTES, MOST_ENTRIES
from paceline.sandbox.programs import Execution, ExecutionStatus, Job


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
