"""Sandbox on this machine: zygotes, each started when first needed and replaced when it fails."""

import atexit
import json
import os
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any

from paceline.errors import SandboxError
from paceline.sandbox.inside.program import NO_FUNCTION, NO_MEMORY, NO_SYNTAX, VALUE
from paceline.sandbox.inside.watching import MOST_BYTES, MOST_ENTRIES
from paceline.sandbox.programs import Execution, ExecutionStatus, Job
from paceline.sandbox.zygote import LevelUnavailableError, Reply, Zygote, ZygoteError

REPORTED: dict[bytes, ExecutionStatus] = {NO_SYNTAX: "syntax_error", NO_MEMORY: "memory", NO_FUNCTION: "no_function"}


def execution_of(job: Job, reply: Reply) -> Execution:
    """Convert a reply to its job's outcome. Whatever the program claims, it can only get one of its own outcomes."""
    status, said = _status(job, reply)
    output = ""
    if job.function is None or status in ("finished", "output_limit"):
        output = (reply.stdout if job.function is None else reply.report[1:]).decode(errors="replace")
    error = "\n".join(part for part in (reply.stderr.decode(errors="replace").rstrip(), said) if part)
    return Execution(status=status, output=output, error=error, seconds=reply.seconds)


def _status(job: Job, reply: Reply) -> tuple[ExecutionStatus, str]:
    """Return the status, and a sentence if standard error does not give the reason."""
    limits = job.limits
    if reply.how == "files":
        return "output_limit", f"more than {MOST_BYTES >> 20} MiB or {MOST_ENTRIES} names of files"
    if reply.exceeded or (reply.how == "signalled" and reply.code == signal.SIGXFSZ):
        return "output_limit", f"more output than {limits.output_bytes} bytes, or sixteen times that in files"
    if reply.how == "timeout":
        return "timeout", (
            f"more than {limits.seconds:g} s of processor time, or more than {limits.wall_seconds:g} s on the clock"
        )
    if reply.how == "threads":
        return "runtime_error", "too many threads"
    if reply.how == "signalled":
        name = signal.Signals(reply.code).name if reply.code in list(signal.Signals) else f"signal {reply.code}"
        return "runtime_error", f"ended by {name}"
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


ATTEMPTS = 3  # Attempts for a job, each in a new zygote
SLEEPERS = 16  # Sleeping programs beyond those that compute, each in a zygote of about 25 MiB


class LocalSandbox:
    """`Sandbox` of processes on this machine, for any number of threads.

    A fork of the trainer's process starts zygotes of its own, as does one that gets the sandbox by pickle.
    """

    def __init__(self, level: str, slots: int) -> None:
        self._level = level
        self.slots, self.callers = slots, slots + SLEEPERS
        self._description: str | None = None
        self._closed = False
        self._reset()
        _OPEN.add(self)

    def _reset(self) -> None:
        self._idle: list[Zygote] = []
        self._busy: set[Zygote] = set()
        self._free = threading.Semaphore(self.slots)
        self._beds = threading.Semaphore(SLEEPERS)
        self._lock = threading.Lock()

    @property
    def description(self) -> str:
        """Isolation in force, in a few words."""
        return f"{self._level} ({self._description})" if self._description else self._level

    def execute(self, job: Job, on_sleep: Callable[[], None] = lambda: None) -> Execution:
        """Run one job to its end; wait for a free slot, and release it while the program sleeps.

        Raises:
            SandboxError: the sandbox failed three times, or the job's arguments are no JSON array.
        """
        if job.function is not None:
            # Arguments are the caller's, so a mistake in them is no outcome of the program.
            try:
                arguments = json.loads(job.arguments)
            except (ValueError, RecursionError) as error:
                raise SandboxError(f"Job.arguments must be a JSON array: {error}") from error
            if not isinstance(arguments, list):
                raise SandboxError(f"Job.arguments must be a JSON array, got {job.arguments[:50]!r}")
        place = free = self._free
        beds = self._beds
        place.acquire()

        def go_to_bed() -> None:
            nonlocal place
            if place is free and beds.acquire(blocking=False):
                place = beds
                free.release()
                on_sleep()

        failures = []
        try:
            for _ in range(ATTEMPTS):
                try:
                    return self._attempt(job, go_to_bed)
                except ZygoteError as error:
                    failures.append(str(error))
        finally:
            place.release()
        raise SandboxError(
            f"the sandbox (level {self._level}) failed {ATTEMPTS} times on one program: {'; '.join(failures)}; "
            f"`paceline doctor` tells whether it works at all"
        )

    def _attempt(self, job: Job, on_sleep: Callable[[], None]) -> Execution:
        zygote = self._take()
        reply = None
        try:
            reply = zygote.run(job, on_sleep)
        finally:
            with self._lock:
                self._busy.discard(zygote)
                is_kept = reply is not None and not self._closed and len(self._idle) < self.slots
                if is_kept:
                    self._idle.append(zygote)
            if not is_kept:
                zygote.end()
        return execution_of(job, reply)

    def _take(self) -> Zygote:
        with self._lock:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            if self._idle:
                zygote = self._idle.pop()
                self._busy.add(zygote)
                return zygote
        try:
            zygote = Zygote(self._level)
        except LevelUnavailableError as error:
            raise SandboxError(f"level {self._level} is not available: {error}") from error
        self._description = zygote.description
        with self._lock:
            if not self._closed:
                self._busy.add(zygote)
                return zygote
        zygote.end()
        raise SandboxError("the sandbox is closed")

    def close(self) -> None:
        """End every process of the sandbox; it cannot be used afterwards."""
        with self._lock:
            self._closed = True
            idle, busy = list(self._idle), list(self._busy)
            self._idle.clear()
        for zygote in idle:
            zygote.end()
        for zygote in busy:
            zygote.interrupt()

    def _after_fork(self) -> None:
        """Reset state in a forked child: the zygotes and the locks are the parent's."""
        for zygote in [*self._idle, *self._busy]:
            zygote.forget()
        self._reset()

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalSandbox, (self._level, self.slots)


_OPEN: "weakref.WeakSet[LocalSandbox]" = weakref.WeakSet()


def _forget_all() -> None:
    for sandbox in list(_OPEN):
        sandbox._after_fork()


def _close_all() -> None:
    for sandbox in list(_OPEN):
        sandbox.close()


os.register_at_fork(after_in_child=_forget_all)
atexit.register(_close_all)
