"""Sandbox on this machine: zygotes, each started when first needed and replaced when it fails."""

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.errors import SandboxError
from paceline.processes.children import BrokenChannelError, receive_bytes, receive_message, send_message
from paceline.sandbox.inside.serving import ASLEEP, STDERR_BYTES
from paceline.sandbox.kept_memory import refusal, shared_mb
from paceline.sandbox.programs import Execution, Job, Reply, execution_of

INSIDE = Path(__file__).parent / "inside"
ENVIRONMENT = {"PYTHONHASHSEED": "0", "TZ": "UTC"}
"""Environment in which a program that prints a set prints it in the same order each time."""
OPTIONS = ("-P", "-s", "-S", "-B", "-X", "utf8")
"""Options that isolate as -I does, except that the environment is `ENVIRONMENT`."""
START_SECONDS = 60.0
GRACE_SECONDS = 30.0  # Seconds beyond a job's own limits after which a zygote counts as stuck
END_SECONDS = 30.0
"""Seconds for a zygote to end what runs and remove its files; with nine times as many processes as cores it has taken
more than ten."""
ENDS = ("exited", "signalled", "timeout", "threads", "files")


class ZygoteError(Exception):
    """Failure of this zygote; nothing is known of the program."""


class LevelUnavailableError(Exception):
    """Refusal of the host to let a zygote take on the level's confinement."""


class Zygote:
    """A process that runs one job at a time, used by one thread at a time."""

    def __init__(self, level: str) -> None:
        """Start the process and wait until it is confined.

        Raises:
            LevelUnavailableError: the host does not allow the level.
            ZygoteError: it could not be started.
        """
        command = [interpreter(), *OPTIONS, str(INSIDE)]
        try:
            self.channel, theirs = socket.socketpair()
            """Socket for jobs and replies, and for the messages of interpreters."""
        except OSError as error:
            raise ZygoteError(f"no channel to it can be made: {error}") from error
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    env=ENVIRONMENT,
                    cwd="/",
                    start_new_session=True,
                )
        except OSError as error:
            self.channel.close()
            raise ZygoteError(f"{command[0]} cannot be started: {error}") from error
        self.channel.settimeout(START_SECONDS)
        try:
            send_message(self.channel, {"level": level, "parent": os.getpid(), "directory": tempfile.gettempdir()})
            reply = receive_message(self.channel)
        except (BrokenChannelError, OSError) as error:
            self.interrupt()
            written = b"" if self._process.stderr is None else self._process.stderr.read()
            text = written.decode(errors="replace").strip()[-500:]
            self.end()
            raise ZygoteError(f"it ended at its start: {text or error}") from error
        if not isinstance(reply.get("ready"), str):
            self.end()
            raise LevelUnavailableError(str(reply.get("failed")))
        self.description = str(reply["ready"])
        """Confinement in force, as the zygote reports it."""

    @property
    def pid(self) -> int:
        """Number of the started process, which ends together with all that it started."""
        return int(self._process.pid)

    def run(self, job: Job, on_sleep: Callable[[], None]) -> Reply:
        """Run one job; `on_sleep` is called once if its program waits without computing.

        Raises:
            ZygoteError: the process died, is stuck or breaks the protocol; end it.
        """
        limits = {**asdict(job.limits), "wall_seconds": job.limits.wall_seconds}
        content = {name: value for name, value in asdict(job).items() if name != "limits"}
        try:
            self.channel.settimeout(job.limits.wall_seconds + GRACE_SECONDS)
            with contextlib.suppress(ConnectionError):  # it may have said why before it ended
                send_message(self.channel, limits)
                send_message(self.channel, content)
            return self._reply(job.limits.output_bytes, on_sleep)
        except (BrokenChannelError, OSError) as error:
            raise ZygoteError(str(error) or "no response in time") from error

    def _reply(self, output_bytes: int, on_sleep: Callable[[], None]) -> Reply:
        reply = receive_message(self.channel)
        if reply == ASLEEP:
            on_sleep()
            reply = receive_message(self.channel)
        if "failed" in reply:
            raise BrokenChannelError(str(reply["failed"]))
        bounds = {"stdout": output_bytes, "stderr": STDERR_BYTES, "report": output_bytes + 1}
        known = reply.get("how") in ENDS and isinstance(reply.get("exceeded"), bool)
        lengths = ((reply.get(name), bound) for name, bound in bounds.items())
        is_bounded = all(isinstance(length, int) and 0 <= length <= bound for length, bound in lengths)
        seconds = reply.get("seconds")
        has_time = isinstance(seconds, int | float) and 0 <= seconds < float("inf")
        if not (known and is_bounded and isinstance(reply.get("code"), int) and has_time):
            raise BrokenChannelError("a malformed reply")
        parts = {name: receive_bytes(self.channel, reply[name]) for name in bounds}
        how, code, exceeded = reply["how"], reply["code"], reply["exceeded"]
        return Reply(how=how, code=code, seconds=float(reply["seconds"]), exceeded=exceeded, **parts)

    def interrupt(self) -> None:
        """End the process and all that it started; a caller waiting in `run` gets an error. Thread-safe."""
        with contextlib.suppress(OSError):  # it may be closed already
            self.channel.shutdown(socket.SHUT_RDWR)
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def end(self) -> None:
        """End the process and release it; not while another thread is in `run`."""
        self.interrupt()
        self.forget()

    def forget(self) -> None:
        """Release a process that has ended, or that belongs to the parent of a fork."""
        self.channel.close()
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._process.returncode = 0  # not ours to wait for, or waited for


def interpreter() -> str:
    """Return the base interpreter of a virtual environment, so that programs do not see the environment's packages."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)


ATTEMPTS = 3  # Attempts for a job, each in a new zygote
AWAKE_SECONDS = 1.0
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
        self._interpreters: set[Zygote] = set()
        self._most_interpreters = 0
        self._kept = dict[Zygote, int]()
        """Bytes that interpreters keep while they wait for code."""
        self._share_mb = shared_mb()
        self._free = threading.Semaphore(self.slots)
        self._sleeping = threading.Semaphore(SLEEPERS)
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
        failures = []
        with self.slot(on_sleep) as release_early:
            for _ in range(ATTEMPTS):
                try:
                    return self._attempt(job, release_early)
                except ZygoteError as error:
                    failures.append(str(error))
        raise self.failure("one program", failures)

    def _attempt(self, job: Job, on_sleep: Callable[[], None]) -> Execution:
        zygote, is_whole = self.take(), False
        try:
            reply = zygote.run(job, on_sleep)
            is_whole = True
        finally:
            self.give_back(zygote, is_whole=is_whole)
        return execution_of(job, reply)

    def failure(self, what: str, failures: list[str]) -> SandboxError:
        """Make the error of a sandbox in which `what` has failed in every attempt."""
        return SandboxError(
            f"the sandbox (level {self._level}) failed {len(failures)} times on {what}: {'; '.join(failures)}; "
            f"`paceline doctor` tells whether it works at all"
        )

    @contextlib.contextmanager
    def slot(
        self,
        on_sleep: Callable[[], None] = lambda: None,
        waiting: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> Iterator[Callable[[], None]]:
        """Wait for a free slot, within `waiting`, and hold it; yields a function that releases it early, for a program
        that sleeps."""
        held = free = self._free
        sleeping = self._sleeping
        if not held.acquire(blocking=False):
            with waiting():  # in short waits: a thread can only be interrupted between them
                while not held.acquire(timeout=AWAKE_SECONDS):
                    pass

        def release_early() -> None:
            nonlocal held
            if held is free and sleeping.acquire(blocking=False):
                held = sleeping
                free.release()
                on_sleep()

        try:
            yield release_early
        finally:
            held.release()

    def take(self, *, for_interpreter: bool = False) -> Zygote:
        """Take an idle zygote or start one; give it back.

        As many are kept idle as there are slots, or as were in use by interpreters at once.

        Raises:
            SandboxError: the sandbox is closed, or its level cannot be had.
            ZygoteError: a zygote could not be started.
        """
        with self._lock:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            if self._idle:
                return self._taken(self._idle.pop(), for_interpreter)
        try:
            zygote = Zygote(self._level)
        except LevelUnavailableError as error:
            raise SandboxError(f"level {self._level} is not available: {error}") from error
        self._description = zygote.description
        with self._lock:
            if not self._closed:
                return self._taken(zygote, for_interpreter)
        zygote.end()
        raise SandboxError("the sandbox is closed")

    def _taken(self, zygote: Zygote, for_interpreter: bool) -> Zygote:
        self._busy.add(zygote)
        if for_interpreter:
            self._interpreters.add(zygote)
            self._most_interpreters = max(self._most_interpreters, len(self._interpreters))
        return zygote

    def keep(self, zygote: Zygote, nbytes: int) -> str | None:
        """Record what an interpreter keeps until its next code, in bytes; returns the reason if it must not keep it."""
        with self._lock:
            others = sum(kept for other, kept in self._kept.items() if other is not zygote)
            reason = refusal(nbytes, by_all=others + nbytes, share_mb=self._share_mb)
            if reason is None:
                self._kept[zygote] = nbytes
            return reason

    def give_back(self, zygote: Zygote, *, is_whole: bool) -> None:
        """Give back what was taken; one that is not whole is ended."""
        with self._lock:
            self._busy.discard(zygote)
            self._interpreters.discard(zygote)
            self._kept.pop(zygote, None)
            is_kept = is_whole and not self._closed and len(self._idle) < max(self.slots, self._most_interpreters)
            if is_kept:
                self._idle.append(zygote)
        if not is_kept:
            zygote.end()

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
