"""Child processes: they end with their parent and take with them what they have started, and they talk with it.

A message is JSON on a stream socket with its length in front, within bounds that both sides enforce. Linux, by the
standard library alone.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import struct
from collections.abc import Collection
from types import FrameType
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)


class TerminationError(Exception):
    """Request to end and clean up."""


def raise_termination(number: int, frame: FrameType | None) -> None:
    """Handle a signal by raising `TerminationError`."""
    raise TerminationError


def die_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends."""
    _control(PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of all that processes below this one leave behind."""
    _control(PR_SET_CHILD_SUBREAPER, 1)


def _control(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl: {os.strerror(code)}")


def guard(parent: int, child: int) -> None:
    """Wait until a parent or a child has ended, or for SIGTERM; then end the child and all orphans.

    `parent` is the descriptor of a process, `child` the number of one. A child could ask the kernel to be killed with
    its parent, but the kernel means the *thread* that started it, which may end at any time. So a process with one
    thread waits for both instead.
    """
    try:
        with contextlib.suppress(TerminationError):
            signal.signal(signal.SIGTERM, raise_termination)
            select.select([parent, os.pidfd_open(child)], [], [])
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the signal may also come just now
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        end_children()


def end_children(besides: Collection[int] = ()) -> None:
    """Kill and reap every child, including those inherited from a program that started some.

    `besides`: numbers of children to leave alone.
    """
    while children := [pid for pid in children_of_this() if pid not in besides]:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def children_of_this() -> list[int]:
    """Return the numbers of this thread's children, inherited ones included; none where the kernel does not tell."""
    try:
        with open("/proc/thread-self/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


PREFIX = struct.Struct(">Q")
MESSAGE_BYTES = 1 << 16  # Largest message, except a job and its output, whose lengths are announced


class BrokenChannelError(Exception):
    """Failure of the other side: it is gone, too slow, or breaks the protocol."""


def send_message(channel: socket.socket, message: dict[str, Any]) -> None:
    """Send one JSON object with its length in front."""
    data = json.dumps(message).encode()
    channel.sendall(PREFIX.pack(len(data)) + data)


def receive_message(channel: socket.socket) -> dict[str, Any]:
    """Receive the next JSON object."""
    (length,) = PREFIX.unpack(receive_bytes(channel, PREFIX.size))
    if length > MESSAGE_BYTES:
        raise BrokenChannelError(f"a message of {length} bytes, at most {MESSAGE_BYTES} are allowed")
    try:
        message = json.loads(receive_bytes(channel, length))
    except (ValueError, RecursionError) as error:
        raise BrokenChannelError(f"a message that is no JSON: {error}") from error
    if not isinstance(message, dict):
        raise BrokenChannelError("a message that is no JSON object")
    return message


def receive_bytes(channel: socket.socket, length: int) -> bytes:
    """Receive exactly `length` bytes."""
    received = bytearray()
    while len(received) < length:
        try:
            part = channel.recv(min(length - len(received), 1 << 20))
        except OSError as error:
            raise BrokenChannelError(str(error) or "no response in time") from error
        if not part:
            raise BrokenChannelError("the other side is gone")
        received += part
    return bytes(received)
