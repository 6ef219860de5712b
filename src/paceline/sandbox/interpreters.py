"""Interpreters in the local sandbox: each holds a zygote of its own for as long as it keeps variables."""

import contextlib
import select
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from paceline.errors import SandboxError
from paceline.processes.children import BrokenChannelError, receive_message, send_message
from paceline.sandbox.inside.program import HEADER
from paceline.sandbox.inside.serving import ANSWERED, ASLEEP, CLOCK, CLOSED, TIMEOUT
from paceline.sandbox.kept_memory import resident_bytes
from paceline.sandbox.local import ATTEMPTS, GRACE_SECONDS, START_SECONDS, LocalSandbox, Zygote, ZygoteError
from paceline.sandbox.programs import TOO_MANY_FILES, CodeResult, Limits, signal_name

WHOLE_LIFE = 10**6  # Seconds of processor time of an interpreter; each call has a limit of its own
SOURCE_BYTES = 1 << 16
"""Largest code: it fits into a socket's buffer, so that sending never waits for an interpreter that does not read."""
BUSY = 3
"""Code that computes may take so many times its seconds on the clock, as others use the processor too."""
CUT_LINE = 64  # Bytes of the line that says how much was left out of an output


class LocalInterpreter:
    """`Interpreter` in a process of the sandbox, started at the first code; used by one thread at a time."""

    def __init__(
        self,
        sandbox: LocalSandbox,
        *,
        seed: int,
        limits: Limits,
        shown_bytes: int,
        waiting: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """`seed` is for the module `random`. A longer output is cut to its first and last half of `shown_bytes`.

        `limits.seconds` holds for each piece of code, the other limits for the interpreter. `waiting` is entered while
        a piece of code waits for a slot.
        """
        self._sandbox, self._limits, self._waiting = sandbox, limits, waiting
        self._content = {"stdin": "", "source": "", "function": None, "seed": seed, "shown_bytes": shown_bytes}
        self._most_bytes = shown_bytes + CUT_LINE
        self._zygote: Zygote | None = None
        self._code: socket.socket | None = None
        self._lock = threading.Lock()
        """Held while the zygote is taken or given back."""
        self._is_running, self._is_closed = False, False
        self._bare_bytes = 0
        """Memory of the interpreter before its first code."""
        self._file_bytes = 0
        """Bytes of its files in memory, after the latest code."""

    def run(self, source: str) -> CodeResult:
        """Run one piece of code to its end; wait for a free slot, and release it while the code sleeps.

        Raises:
            SandboxError: the sandbox failed, or the interpreter is closed.
        """
        data = source.encode("utf-8", "surrogatepass")
        if len(data) > SOURCE_BYTES:
            raise ValueError(f"code of at most {SOURCE_BYTES} bytes can be run, got {len(data)}")
        with self._sandbox.slot(waiting=self._waiting) as release_early:
            zygote, code = self._started()
            is_whole = False
            try:
                result, goes_on = self._ask(zygote, code, data, release_early)
                if goes_on and (reason := self._refusal(zygote)) is not None:
                    _end_interpreter(zygote)
                    result, goes_on = CodeResult(output="", ended=reason, seconds=result.seconds), False
                is_whole = True
            except (ZygoteError, BrokenChannelError, OSError) as error:
                raise SandboxError(f"the sandbox failed while it ran code: {error or 'no response in time'}") from error
            finally:
                self._end_run(is_whole=is_whole, goes_on=is_whole and goes_on)
            return result

    def close(self) -> None:
        """End the interpreter with what it runs; another thread that waits in `run` gets a SandboxError."""
        with self._lock:
            self._is_closed = True
            zygote, is_running = self._zygote, self._is_running
        if zygote is not None and is_running:
            zygote.interrupt()  # the thread in `run` gives it back
        elif zygote is not None:
            is_whole = False
            with contextlib.suppress(BrokenChannelError, OSError):
                is_whole = _end_interpreter(zygote)
            self._release(is_whole=is_whole)

    def _started(self) -> tuple[Zygote, socket.socket]:
        """Return zygote and channel of the interpreter, marked as running code; start one if there is none."""
        with self._lock:
            self._check_open()
            if self._zygote is not None and self._code is not None:
                self._is_running = True
                return self._zygote, self._code
        zygote, code = self._begun()
        with self._lock:
            self._zygote, self._code = zygote, code
            self._is_running = not self._is_closed
        if not self._is_running:
            self._release(is_whole=False)
        self._check_open()
        return zygote, code

    def _check_open(self) -> None:
        if self._is_closed:
            raise SandboxError("the interpreter is closed")

    def _begun(self) -> tuple[Zygote, socket.socket]:
        """Start an interpreter, again if that fails: nothing has been run in it yet."""
        failures = []
        for _ in range(ATTEMPTS):
            try:
                zygote = self._sandbox.take(for_interpreter=True)
            except ZygoteError as error:
                failures.append(str(error))
                continue
            try:
                code = _begin(zygote, self._limits, self._content)
                self._bare_bytes = resident_bytes(zygote.pid)
                return zygote, code
            except (BrokenChannelError, OSError) as error:
                failures.append(str(error) or "no response in time")
                self._sandbox.give_back(zygote, is_whole=False)
        raise self._sandbox.failure("the start of an interpreter", failures)

    def _ask(
        self, zygote: Zygote, code: socket.socket, data: bytes, on_sleep: Callable[[], None]
    ) -> tuple[CodeResult, bool]:
        """Run one piece of code; returns its outcome, and True if the interpreter goes on."""
        limits, busy_seconds = self._limits, BUSY * self._limits.wall_seconds
        zygote.channel.settimeout(busy_seconds + GRACE_SECONDS)
        allowed = {"seconds": limits.seconds, "wall_seconds": limits.wall_seconds, "busy_seconds": busy_seconds}
        send_message(zygote.channel, allowed)
        with contextlib.suppress(BrokenPipeError):  # it has ended in the meantime, and the zygote will say how
            code.sendall(len(data).to_bytes(8, "big") + data)
        response = b""
        is_asleep = False
        listened = [zygote.channel, code]
        while not self._is_complete(response):
            ready, _, _ = select.select(listened, [], [], busy_seconds + GRACE_SECONDS)
            if zygote.channel in ready:
                message = receive_message(zygote.channel)
                if message != ASLEEP:
                    return self._ended(message, is_asleep=is_asleep), False
                is_asleep = True
                on_sleep()
            elif code in ready:
                part = code.recv(self._most_bytes)
                response += part
                if not part:  # the code has closed it; the zygote will say how that ends
                    listened = [zygote.channel]
            else:
                raise ZygoteError("no response in time")
        send_message(zygote.channel, {ANSWERED: True})
        message = receive_message(zygote.channel)
        if message == ASLEEP:
            message = receive_message(zygote.channel)
        if message.get("how") != ANSWERED:  # it ended while its response was on the way
            return self._ended(message, is_asleep=True), False
        seconds, self._file_bytes = float(message["seconds"]), int(message["files"])
        length, failed = HEADER.unpack(response[: HEADER.size])
        if length + HEADER.size != len(response) or failed > 1:
            _end_interpreter(zygote)
            return CodeResult(output="", ended="ended: the code wrote into its descriptor 3", seconds=seconds), False
        output = response[HEADER.size :].decode("utf-8", "replace")
        return CodeResult(output=output, failed=bool(failed), seconds=seconds), True

    def _refusal(self, zygote: Zygote) -> str | None:
        """Return why the interpreter must not keep what it holds; None: it may."""
        held = resident_bytes(zygote.pid) - self._bare_bytes + self._file_bytes
        return self._sandbox.keep(zygote, max(0, held))

    def _is_complete(self, response: bytes) -> bool:
        """Return True if no more is to come, or more than there can be."""
        if len(response) < HEADER.size:
            return False
        length: int = HEADER.unpack(response[: HEADER.size])[0]
        return length > self._most_bytes or len(response) - HEADER.size >= length

    def _ended(self, message: dict[str, Any], *, is_asleep: bool) -> CodeResult:
        how, code, limits = message.get("how"), message.get("code"), self._limits
        ends = {
            TIMEOUT: f"stopped after {limits.seconds:g} s of processor time",
            CLOCK: f"stopped after {limits.wall_seconds:g} s, asleep"
            if is_asleep
            else f"stopped after {BUSY * limits.wall_seconds:g} s",
            "exited": f"ended with exit status {code}",
            "signalled": f"ended by {signal_name(code)}" if isinstance(code, int) else "",
            "threads": "stopped for too many threads",
            "files": f"stopped for {TOO_MANY_FILES}",
        }
        if how not in ends:
            raise BrokenChannelError(str(message.get("failed", "a malformed reply")))
        return CodeResult(output="", ended=ends[how], seconds=float(message["seconds"]))

    def _end_run(self, *, is_whole: bool, goes_on: bool) -> None:
        """Leave the zygote for the next code, or give it back; one that was closed meanwhile has been interrupted."""
        with self._lock:
            self._is_running = False
            is_closed = self._is_closed
        if is_closed or not goes_on:
            self._release(is_whole=is_whole and not is_closed)

    def _release(self, *, is_whole: bool) -> None:
        with self._lock:
            zygote, code = self._zygote, self._code
            self._zygote = self._code = None
        if code is not None:
            code.close()
        if zygote is not None:
            self._sandbox.give_back(zygote, is_whole=is_whole)


def _begin(zygote: Zygote, limits: Limits, content: dict[str, Any]) -> socket.socket:
    """Start an interpreter in an idle zygote; return the channel for its code."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            zygote.channel.settimeout(START_SECONDS)
            send_message(zygote.channel, {**asdict(limits), "seconds": WHOLE_LIFE, "interpreter": True})
            socket.send_fds(zygote.channel, [b"."], [theirs.fileno()])
            send_message(zygote.channel, content)
            reply = receive_message(zygote.channel)
        if "started" not in reply:
            raise BrokenChannelError(str(reply.get("failed", "a malformed reply")))
    except (BrokenChannelError, OSError):
        ours.close()
        raise
    return ours


def _end_interpreter(zygote: Zygote) -> bool:
    """End the interpreter of a zygote between two pieces of code; returns True if the zygote is whole afterwards."""
    send_message(zygote.channel, {CLOSED: True})
    return receive_message(zygote.channel).get("how") == CLOSED
