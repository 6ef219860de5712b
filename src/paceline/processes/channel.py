"""Length-prefixed JSON on a stream socket, with bounds that both sides enforce."""

import json
import socket
import struct
from typing import Any

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
