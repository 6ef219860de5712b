"""Interpretation of a zygote's reply."""

import json
import signal

from paceline.sandbox.inside.watching import MOST_BYTES, MOST_ENTRIES
from paceline.sandbox.programs import Execution, ExecutionStatus, Job
from paceline.sandbox.zygote import Reply, wall_seconds

NO_SYNTAX, NO_MEMORY, NO_FUNCTION, VALUE = b"S", b"M", b"N", b"V"
"""First byte of a report, as in `inside/program.py`."""

REPORTED: dict[bytes, ExecutionStatus] = {NO_SYNTAX: "syntax_error", NO_MEMORY: "memory", NO_FUNCTION: "no_function"}


def execution_of(job: Job, reply: Reply) -> Execution:
    """Convert a reply to its job's outcome. Whatever the program claims, it can only get one of its own outcomes."""
    status, said = _status(job, reply)
    output = _output(job, reply) if status in ("finished", "output_limit") or job.function is None else ""
    stderr = reply.stderr.decode(errors="replace")
    error = "\n".join(part for part in (stderr.rstrip(), said) if part)
    return Execution(status=status, output=output, error=error, seconds=reply.seconds)


def _output(job: Job, reply: Reply) -> str:
    if job.function is None:
        return reply.stdout.decode(errors="replace")
    return reply.report[1:].decode(errors="replace")


def _status(job: Job, reply: Reply) -> tuple[ExecutionStatus, str]:
    """Return the status, and a sentence if standard error does not give the reason."""
    limits = job.limits
    if reply.how == "files":
        return "output_limit", f"more than {MOST_BYTES >> 20} MiB or {MOST_ENTRIES} names of files"
    if reply.exceeded or (reply.how == "signalled" and reply.code == signal.SIGXFSZ):
        return "output_limit", f"more output than {limits.output_bytes} bytes, or sixteen times that in files"
    if reply.how == "timeout":
        return "timeout", (
            f"more than {limits.seconds:g} s of processor time, or more than {wall_seconds(limits):g} s on the clock"
        )
    if reply.how == "threads":
        return "runtime_error", "too many threads"
    if reply.how == "signalled":
        return "runtime_error", f"ended by {_signal_name(reply.code)}"
    if job.function is None:
        return _status_of_program(reply)
    return _status_of_call(reply)


def _status_of_program(reply: Reply) -> tuple[ExecutionStatus, str]:
    if reply.code == 0:
        return "finished", ""
    return REPORTED.get(reply.report[:1], "runtime_error"), f"exit status {reply.code}"


def _status_of_call(reply: Reply) -> tuple[ExecutionStatus, str]:
    """Return the status of a call, whose value counts only if it is JSON: the program may write anything there."""
    if reply.code != 0:
        return REPORTED.get(reply.report[:1], "runtime_error"), f"exit status {reply.code}"
    if reply.report[:1] != VALUE:
        return "runtime_error", "the program ended before its function returned"
    try:
        json.loads(reply.report[1:].decode())
    except (ValueError, RecursionError) as error:
        return "runtime_error", f"the value is no JSON that can be read: {error}"
    return "finished", ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
