"""Sandbox on a judge service over HTTP, instead of this machine's.

The service speaks SandboxFusion's protocol (github.com/bytedance/SandboxFusion): `POST /run_code` with code, standard
input and limits; the response holds `status` and `run_result`. Isolation is the service's own concern: SandboxFusion as
shipped isolates nothing (`isolation: none`).

A service cannot call a function, so such a job is sent as a program that makes the call (`CALLER`). It prints the
returned value behind a mark that is new each time, so that no other output is mistaken for it. The program knows only
the input of its task, so printing the mark itself gains nothing.

A failure on the way to the program (no connection, an error status, silence, a truncated or malformed response) says
nothing of the program. The request is retried; then it is a SandboxError.
"""

import base64
import json
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NoReturn, cast
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from paceline.errors import SandboxError
from paceline.http.client import HttpCallError, HttpClient
from paceline.sandbox.inside.program import GIVEN
from paceline.sandbox.programs import Execution, ExecutionStatus, Job

PATH = "/run_code"
INTERPRETER_MB = 64  # MiB of Python itself: the service limits a whole process, a job only what the program adds
QUEUE_SECONDS = 600.0  # Seconds that a job waits for one of the slots
SHOWN = 200  # Characters of the service's own message that ours quotes
STATUSES = ("finished", "runtime_error", "syntax_error", "no_function")

# Runs on the service, with its Python; finds the function where this machine's sandbox does.
CALLER = """
import builtins
import importlib
import json
import os
import sys
import types

given = json.loads(sys.stdin.readline())
out = os.fdopen(os.dup(1), "w", encoding="utf-8")


def respond(status, text):
    sys.stdout.flush()
    out.write("\\n" + given["mark"] + json.dumps([status, text]) + "\\n")
    out.flush()


def find(module, name):
    solution = module.__dict__.get("Solution")
    if isinstance(solution, type) and callable(getattr(solution, name, None)):
        return getattr(solution(), name)
    function = module.__dict__.get(name)
    return function if callable(function) else None


def names():
    found = {name: importlib.import_module(name) for name in given["names"]}
    for name, members in given["names"].items():
        found.update((member, getattr(sys.modules[name], member)) for member in members.split() if member != name)
    return found


def main():
    try:
        program = compile(given["source"], "solution.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return respond("syntax_error", "%s: %s" % (type(error).__name__, error))
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    module.__dict__["__builtins__"] = dict(vars(builtins), **names())  # beneath the program's own names
    exec(program, module.__dict__)
    function = find(module, given["function"])
    if function is None:
        return respond("no_function", "there is no function " + given["function"])
    value = function(*given["arguments"])
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        return respond("runtime_error", "the returned value is no plain data: %s" % error)
    respond("finished", text)


main()
"""


class RemoteSandbox:
    """`Sandbox` on a judge service."""

    def __init__(
        self, url: str, *, slots: int = 16, timeout: float = 15.0, retries: int = 2, pause: float = 0.5
    ) -> None:
        """`url`: the service, with or without `/run_code`; `user:password@` in it becomes a header.

        `slots`: requests at the same time. `timeout`: seconds that a response may take beyond the program's own time.
        `retries`: further tries; the first comes after `pause` seconds, each other after twice the pause before.

        Raises:
            SandboxError: `url` is no address of a service.
        """
        self.slots = self.callers = slots  # the service does not show sleeping jobs
        self._url, self._address, self._headers = _parts(url)
        self.description = f"judge service {self._address}"
        self._timeout, self._retries, self._pause = timeout, retries, pause
        self._slots = threading.BoundedSemaphore(slots)
        self._closed = threading.Event()
        self._http = HttpClient(self._url)

    def check(self) -> None:
        """Run one small program on the service; raises SandboxError if it cannot be reached, or responds otherwise."""
        execution = self.execute(Job(source="print(input()[::-1])", stdin="decaf\n"))
        if execution.status != "finished" or execution.output.strip() != "faced":
            self._give_up(f"a program that reads and prints came to {execution.status!r}: {_short(execution.error)}")

    def execute(self, job: Job, on_sleep: Callable[[], None] = lambda: None) -> Execution:
        """Run one job to its end."""
        stdin, mark = job.stdin, None
        if job.function is not None:
            mark = secrets.token_hex(16)
            call = {
                "source": job.source.removeprefix("\ufeff"),
                "function": job.function,
                "arguments": json.loads(job.arguments),
                "mark": mark,
                "names": GIVEN,
            }
            stdin = json.dumps(call) + "\n"
        request = {
            "code": job.source if mark is None else CALLER,
            "language": "python",
            "stdin": stdin,
            "run_timeout": job.limits.wall_seconds,  # on the wall clock, the only limit that the service has
            "memory_limit_MB": job.limits.memory_mb + INTERPRETER_MB,
        }
        body = json.dumps(request).encode()
        failure = ""
        for attempt in range(1 + self._retries):
            if attempt and self._closed.wait(self._pause * 2 ** (attempt - 1)):
                break
            try:
                run = self._run(body, job)
            except _PassingError as error:
                failure = str(error)
            else:
                return run if mark is None else _called(run, mark)
        if self._closed.is_set():
            raise SandboxError(f"the sandbox ({self.description}) is closed")
        self._give_up(f"no result in {1 + self._retries} tries, the last: {failure}")

    def close(self) -> None:
        """End the pauses between attempts; requests under way end by themselves, within their time."""
        self._closed.set()

    def _run(self, body: bytes, job: Job) -> Execution:
        if self._closed.is_set():
            raise _PassingError("closed")
        if not self._slots.acquire(timeout=QUEUE_SECONDS):
            self._give_up(f"none of {self.slots} slots came free in {QUEUE_SECONDS:.0f} seconds")
        try:
            # Both outputs, in JSON's longest spelling of a byte, and the rest.
            largest = 2 * 6 * job.limits.output_bytes + (1 << 20)
            reply = self._http.call(
                self._url,
                data=body,
                headers=self._headers,
                seconds=job.limits.wall_seconds + self._timeout,
                limit=largest,
            )
        except HttpCallError as error:
            raise _PassingError(_short(str(error))) from error
        finally:
            self._slots.release()
        if reply.may_pass:
            raise _PassingError(f"status {reply.status}")
        if not reply.is_success:
            self._give_up(f"status {reply.status} for {PATH}")
        if reply.body is None:
            self._give_up(f"a response of more than {largest} bytes, which no program's output can need")
        return _execution(reply.body, job)

    def _give_up(self, why: str) -> NoReturn:
        raise SandboxError(
            f"the judge service {self._address} failed: {why}; check that it runs and speaks SandboxFusion's protocol, "
            "or leave --sandbox out"
        )


class _PassingError(Exception):
    """Failure of an attempt that may succeed later."""


def _parts(url: str) -> tuple[str, str, dict[str, str]]:
    """Split an address: the one to send to, the one to show (without password or query), and the headers."""
    try:
        parts = urlsplit(url)
        is_complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, is_complete = SplitResult("", "", "", "", ""), False
    host = parts.netloc.rpartition("@")[2]
    shown = f"{parts.scheme}://{host}"
    if not is_complete or not url.isascii() or " " in url:
        raise SandboxError(f"--sandbox must be the address of a judge service, got {shown!r}; http://host:port")
    path = parts.path.rstrip("/")
    path = path if path.endswith(PATH) else path + PATH
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    return urlunsplit((parts.scheme, host, path, parts.query, "")), shown, headers


def _execution(response: bytes, job: Job) -> Execution:
    try:
        record = json.loads(response)
    except (ValueError, RecursionError) as error:
        raise _PassingError(f"a response that is no JSON ({_short(str(error))})") from error
    run = record.get("run_result") if isinstance(record, Mapping) else None
    if isinstance(record, Mapping) and record.get("status") == "SandboxError":
        raise _PassingError(f"the service's own failure ({_short(str(record.get('message')))})")
    if not isinstance(run, Mapping) or record.get("status") not in ("Success", "Failed"):
        raise _PassingError("a response without status and run_result")
    output, stderr, seconds = run.get("stdout") or "", run.get("stderr") or "", run.get("execution_time") or 0.0
    status, code = run.get("status"), run.get("return_code")
    is_plain = isinstance(output, str) and isinstance(stderr, str) and isinstance(seconds, int | float)
    if status == "TimeLimitExceeded" and is_plain:
        return Execution(status="timeout", output="", error=stderr[-2000:], seconds=seconds)
    if status != "Finished" or not is_plain or not isinstance(code, int):
        raise _PassingError("a response whose run_result has another shape")
    # The service cuts at its own limit and does not say so: an output of that length may lack its end.
    if len(output.encode("utf-8", "surrogatepass")) >= job.limits.output_bytes:
        return Execution(status="output_limit", output="", error=stderr[-2000:], seconds=seconds)
    ended: ExecutionStatus = "finished" if code == 0 else _failure(code, stderr)
    return Execution(status=ended, output=output, error=stderr[-2000:], seconds=seconds)


def _called(run: Execution, mark: str) -> Execution:
    if run.status not in ("finished", "runtime_error"):
        return run
    if run.status == "runtime_error":
        return replace(run, output="")
    line = run.output.rpartition(mark)[2].partition("\n")[0] if mark in run.output else ""
    try:
        status, text = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return replace(run, status="runtime_error", output="", error="it ended before the function returned")
    if status not in STATUSES or not isinstance(text, str):
        return replace(run, status="runtime_error", output="", error="it printed the mark of the value itself")
    if status == "finished":
        return replace(run, output=text)
    return replace(run, status=cast(ExecutionStatus, status), output="", error=text)


def _failure(code: int, error: str) -> ExecutionStatus:
    last = (error.strip().splitlines() or [""])[-1]
    if code in (-9, 137) or last.startswith("MemoryError"):
        return "memory"
    # An error while it runs has a traceback, one while it is read has none.
    is_unread = last.startswith(("SyntaxError", "IndentationError", "TabError")) and "Traceback" not in error
    return "syntax_error" if is_unread else "runtime_error"


def _short(text: str) -> str:
    return " ".join(text.split())[:SHOWN]
