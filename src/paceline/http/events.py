"""Events of a response while they are being made, and refusals."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus

GONE_SECONDS = 0.5
"""Seconds between two looks whether a client that is waiting is still there."""


class HttpRefusal(Exception):
    """Refusal of a request, in one sentence."""

    def __init__(self, sentence: str, *, status: int = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(sentence)
        self.status = status


class EventStream:
    """A response whose events are still being made. Its producer never waits for the client.

    What the client takes at once is written in the producer's thread, the rest in that of the connection.
    """

    def __init__(self) -> None:
        self.on_lost: Callable[[], None] = lambda: None
        """Called where the client is gone before the end."""
        self._lock, self._changed = threading.Lock(), threading.Event()
        self._descriptor: int | None = None
        """Where the producer may write; None: the head is not written yet, or the connection is over."""
        self._unsent, self._has_ended = bytearray(), False
        """Events that the connection's thread is to write, and True if none follow them."""
        self._refusal: HttpRefusal | None = None

    def add(self, events: bytes, *, is_last: bool = False) -> None:
        """Write further events, or leave to the connection's thread what the client does not take at once."""
        with self._lock:
            if self._descriptor is not None and not self._unsent:
                # that thread meets the error too where the client is gone
                with contextlib.suppress(OSError):
                    events = events[os.write(self._descriptor, events) :]
            self._unsent += events
            self._has_ended = is_last
            if self._unsent or is_last:
                self._changed.set()

    def refuse(self, refusal: HttpRefusal) -> None:
        """Respond with an error; only before the first event."""
        self._refusal = refusal
        self._changed.set()

    def wait(self, is_gone: Callable[[], bool]) -> None:
        """Wait for the first events; raises the refusal where there will be none, OSError where the client is gone."""
        while not self._changed.wait(GONE_SECONDS):
            if is_gone():
                raise ConnectionAbortedError
        if self._refusal is not None:
            raise self._refusal

    def write_to(self, connection: socket.socket, is_gone: Callable[[], bool]) -> None:
        """Write all events, those to come as well; raises OSError where the client is gone."""
        try:
            while True:
                with self._lock:
                    events, has_ended = bytes(self._unsent), self._has_ended
                    self._changed.clear()
                    # a socket with a timeout does not block: the producer gets an error where the client takes nothing
                    self._descriptor = connection.fileno()
                if events:
                    connection.sendall(events)
                    with self._lock:
                        del self._unsent[: len(events)]
                elif has_ended:
                    return
                elif not self._changed.wait(GONE_SECONDS) and is_gone():
                    raise ConnectionAbortedError
        finally:
            with self._lock:
                self._descriptor = None
