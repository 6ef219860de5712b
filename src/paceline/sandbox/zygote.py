"""A zygote as the trainer holds it: started by path with nothing of the trainer's, asked over one socket."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.sandbox.inside.channel import (
    ASLEEP,
    STDERR_BYTES,
    BrokenChannelError,
    receive_bytes,
    receive_message,
    send_message,
)
from paceline.sandbox.programs import Job

INSIDE = Path(__file__).parent / "inside"
ENVIRONMENT = {"PYTHONHASHSEED": "0", "TZ": "UTC"}
"""Environment in which a program that prints a set prints it in the same order each time."""
OPTIONS = ("-P", "-s", "-S", "-B", "-X", "utf8")
"""Options that isolate as -I does, except for the environment, which is ours."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """End of a program in the zygote's words, within bounds."""

    how: str
    code: int
    seconds: float
    exceeded: bool
    stdout: bytes
    stderr: bytes
    report: bytes


class Zygote:
    """A process that runs one job at a time, used by one thread at a time."""

    def __init__(self, level: str) -> None:
        """Start the process and wait until it is confined.

        Raises:
            LevelUnavailableError: the host does not allow the level.
            ZygoteError: it could not be started.
        """
        self._channel, theirs = socket.socketpair()
        command = [interpreter(), *OPTIONS, str(INSIDE)]
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
            self._channel.close()
            raise ZygoteError(f"{command[0]} cannot be started: {error}") from error
        self._channel.settimeout(START_SECONDS)
        try:
            send_message(self._channel, {"level": level, "parent": os.getpid(), "directory": tempfile.gettempdir()})
            answer = receive_message(self._channel)
        except (BrokenChannelError, OSError) as error:
            self.interrupt()
            written = b"" if self._process.stderr is None else self._process.stderr.read()
            said = written.decode(errors="replace").strip()[-500:]
            self.end()
            raise ZygoteError(f"it ended at its start: {said or error}") from error
        if not isinstance(answer.get("ready"), str):
            self.end()
            raise LevelUnavailableError(str(answer.get("failed")))
        self.description = str(answer["ready"])
        """The confinement in force, in the zygote's words."""

    @property
    def pid(self) -> int:
        """Number of the started process; it ends with all that it started."""
        return int(self._process.pid)

    def run(self, job: Job, on_sleep: Callable[[], None]) -> Reply:
        """Run one job; `on_sleep` is called once if its program waits without computing.

        Raises:
            ZygoteError: the process died, is stuck or breaks the protocol; end it.
        """
        limits = {**asdict(job.limits), "wall_seconds": job.limits.wall_seconds}
        content = {name: value for name, value in asdict(job).items() if name != "limits"}
        try:
            self._channel.settimeout(job.limits.wall_seconds + GRACE_SECONDS)
            with contextlib.suppress(ConnectionError):  # it may have said why before it ended
                send_message(self._channel, limits)
                send_message(self._channel, content)
            return self._reply(job.limits.output_bytes, on_sleep)
        except (BrokenChannelError, OSError) as error:
            raise ZygoteError(str(error) or "no answer in time") from error

    def _reply(self, output_bytes: int, on_sleep: Callable[[], None]) -> Reply:
        answer = receive_message(self._channel)
        if answer == ASLEEP:
            on_sleep()
            answer = receive_message(self._channel)
        if "failed" in answer:
            raise BrokenChannelError(str(answer["failed"]))
        bounds = {"stdout": output_bytes, "stderr": STDERR_BYTES, "report": output_bytes + 1}
        known = answer.get("how") in ENDS and isinstance(answer.get("exceeded"), bool)
        lengths = ((answer.get(name), bound) for name, bound in bounds.items())
        is_bounded = all(isinstance(length, int) and 0 <= length <= bound for length, bound in lengths)
        seconds = answer.get("seconds")
        has_time = isinstance(seconds, int | float) and 0 <= seconds < float("inf")
        if not (known and is_bounded and isinstance(answer.get("code"), int) and has_time):
            raise BrokenChannelError("an answer that is none")
        parts = {name: receive_bytes(self._channel, answer[name]) for name in bounds}
        how, code, exceeded = answer["how"], answer["code"], answer["exceeded"]
        return Reply(how=how, code=code, seconds=float(answer["seconds"]), exceeded=exceeded, **parts)

    def interrupt(self) -> None:
        """End the process and all that it started; a caller waiting in `run` gets an error. Thread-safe."""
        with contextlib.suppress(OSError):  # it may be closed already
            self._channel.shutdown(socket.SHUT_RDWR)
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def end(self) -> None:
        """End the process and release it; not while another thread is in `run`."""
        self.interrupt()
        self._channel.close()
        if self._process.stderr is not None:
            self._process.stderr.close()

    def forget(self) -> None:
        """Release a process that belongs to the parent of a fork."""
        self._channel.close()
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._process.returncode = 0  # not ours to wait for


def interpreter() -> str:
    """Return the base interpreter of a virtual environment: programs do not get the environment's packages."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)
