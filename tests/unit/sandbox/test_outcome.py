"""What a reply means, without any process."""

import signal

import pytest

from paceline.sandbox.programs import Job, Limits, Reply, execution_of

PROGRAM = Job(source="", limits=Limits(seconds=2.0, output_bytes=100))
CALL = Job(source="", function="f", limits=Limits(output_bytes=100))


def reply(how="exited", code=0, exceeded=False, stdout=b"", stderr=b"", report=b"") -> Reply:
    return Reply(how=how, code=code, seconds=0.5, exceeded=exceeded, stdout=stdout, stderr=stderr, report=report)


@pytest.mark.parametrize(
    ("job", "given", "status", "output"),
    [
        (PROGRAM, reply(stdout=b"6\n"), "finished", "6\n"),
        (PROGRAM, reply(stdout=b"\xff"), "finished", "\ufffd"),
        (PROGRAM, reply(code=1, stdout=b"6\n"), "runtime_error", "6\n"),
        (PROGRAM, reply(code=1, report=b"S"), "syntax_error", ""),
        (PROGRAM, reply(code=1, report=b"M"), "memory", ""),
        (PROGRAM, reply(code=0, report=b"S", stdout=b"6\n"), "finished", "6\n"),  # a report of its own making
        (PROGRAM, reply("timeout"), "timeout", ""),
        (PROGRAM, reply("timeout", exceeded=True), "output_limit", ""),
        (PROGRAM, reply("signalled", signal.SIGSEGV), "runtime_error", ""),
        (PROGRAM, reply("signalled", signal.SIGXFSZ), "output_limit", ""),
        (PROGRAM, reply("threads"), "runtime_error", ""),
        (PROGRAM, reply("files"), "output_limit", ""),
        (CALL, reply(report=b"V[1, 2]"), "finished", "[1, 2]"),
        (CALL, reply(report=b"V[1, 2]", stdout=b"noise"), "finished", "[1, 2]"),
        (CALL, reply(report=b""), "runtime_error", ""),
        (CALL, reply(report=b"V[1,"), "runtime_error", ""),
        (CALL, reply(report=b"V" + b"[" * 100_000), "runtime_error", ""),
        (CALL, reply(report=b"V\xff"), "runtime_error", ""),
        (CALL, reply(report=b"V" + b"1" * 5000), "runtime_error", ""),  # more digits than Python reads
        (CALL, reply(code=1, report=b"V3"), "runtime_error", ""),
        (CALL, reply(code=1, report=b"N"), "no_function", ""),
    ],
)
def test_a_reply_comes_to_its_status(job, given, status, output):
    execution = execution_of(job, given)
    assert (execution.status, execution.output) == (status, output)


def test_files_over_the_watchers_bounds_are_told_apart_from_output():
    assert execution_of(PROGRAM, reply("files")).error == "more than 64 MiB or 2000 names of files"


def test_the_error_holds_what_the_program_said_and_why_it_ended():
    assert execution_of(PROGRAM, reply("signalled", signal.SIGSEGV, stderr=b"oops\n")).error == "oops\nended by SIGSEGV"
    said = execution_of(PROGRAM, reply("timeout")).error
    assert said == "more than 2 s of processor time, or more than 5 s on the clock"
