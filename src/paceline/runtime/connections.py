"""An HTTP server's connections: a bound on their number, deadlines for strangers, and requests that read one way only.

A connection is a stranger's until a request on it has shown the key. Strangers have `STRANGER_SECONDS` for that; where
there are too many connections, the oldest stranger's is closed for a new one.
"""

import errno
import re
import resource
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import override

MOST_CONNECTIONS = 1024
"""Connections at the same time, at most; fewer where the process may open fewer files."""
STRANGER_SECONDS = 10.0
"""Seconds for the head of a request with the key, and for the answer to one without."""
BODY_SECONDS = 60.0
"""Seconds for the body of a request."""
IDLE_SECONDS = 600.0
"""Seconds between two requests of somebody who has the key."""
LOOK_SECONDS = 0.25
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""What `accept` fails with where the process or the machine can open no further connection."""
EXHAUSTED_SECONDS = 0.02  # until the next try to accept

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LENGTH = re.compile(r"[0-9]{1,20}")  # `int` refuses thousands of digits
ONCE = ("Host", "Content-Length", "Transfer-Encoding", "Authorization")
"""Headers of which a second one would let two readers see two requests."""


class Connection:
    """One connection and when it is closed, unless something happens before."""

    def __init__(self, request: socket.socket) -> None:
        self.socket = request
        self.is_known = False
        """True once a request on it has shown the key."""
        self.deadline: float | None = time.monotonic() + STRANGER_SECONDS
        """None: the server is at work for it."""

    def give(self, seconds: float | None) -> None:
        """Set the deadline anew; None: there is none, but for a stranger the former one stays."""
        if seconds is not None:
            self.deadline = time.monotonic() + seconds
        elif self.is_known:
            self.deadline = None

    def end(self) -> None:
        """Close both directions, which ends the thread that reads or writes."""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # it is closed already
            return


class BoundedServer(ThreadingHTTPServer):
    """A server that silent, slow or many strangers cannot close to others."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type["StrictRequests"]) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most_connections = MOST_CONNECTIONS if files < 0 else max(8, min(MOST_CONNECTIONS, files // 2))
        self._connections = dict[socket.socket, Connection]()
        """Open connections, oldest first."""
        self._connections_lock, self._looked = threading.Lock(), 0.0
        super().__init__(address, handler)

    def connection_of(self, request: socket.socket) -> Connection:
        """Return the connection behind a socket."""
        with self._connections_lock:
            return self._connections[request]

    @override
    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            request, address = self.socket.accept()
        except OSError as error:
            if error.errno in EXHAUSTED:
                self._end_oldest_stranger()
                time.sleep(EXHAUSTED_SECONDS)  # the connection still waits, and would be tried again at once
            raise
        if len(self._connections) >= self.most_connections and not self._end_oldest_stranger():
            request.close()
            raise ConnectionAbortedError
        with self._connections_lock:
            self._connections[request] = Connection(request)
        return request, address

    @override
    def service_actions(self) -> None:
        """Close connections whose deadline has passed; called between two waits for a new one."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        with self._connections_lock:
            late = [one for one in self._connections.values() if one.deadline is not None and one.deadline < now]
        for connection in late:
            connection.end()

    @override
    def shutdown_request(self, request: Any) -> None:
        with self._connections_lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away; the connection is closed."""

    def _end_oldest_stranger(self) -> bool:
        with self._connections_lock:
            oldest = next((one for one in self._connections.values() if not one.is_known), None)
            if oldest is not None:  # its thread has yet to end, and is counted no more
                del self._connections[oldest.socket]
        if oldest is not None:
            oldest.end()
        return oldest is not None


class StrictRequests(BaseHTTPRequestHandler):
    """Reads requests in the one way in which every reader between would."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "paceline", ""
    timeout = IDLE_SECONDS
    disable_nagle_algorithm = True  # the body is a second packet, which would wait for the first one's receipt
    server: BoundedServer

    @override
    def setup(self) -> None:
        super().setup()
        self.at = self.server.connection_of(self.request)

    @override
    def parse_request(self) -> bool:
        """Read the head; one that can be read in two ways is answered with 400, and the connection closed."""
        if not super().parse_request():
            return False
        self.path = self.path or "/"
        problem = self._problem()
        if problem is not None:
            self.send_error(HTTPStatus.BAD_REQUEST, problem)
        return problem is None

    def _problem(self) -> str | None:
        if self.request_version == "HTTP/0.9" or not self.path.startswith("/"):
            return "the request line must be a method, a path that begins with /, and a version"
        values = "".join(self.headers.values())
        whole = not (self.headers.defects or self.headers.get_payload() or "\n" in values or "\r" in values)
        if not whole or not all(map(_NAME.fullmatch, self.headers.keys())):
            return "a header must be NAME: VALUE on one line"
        twice = next((name for name in ONCE if len(self.headers.get_all(name, [])) > 1), None)
        if twice is not None:
            return f"there must be one header {twice}"
        if "Transfer-Encoding" in self.headers:
            return "the body must have a Content-Length and no Transfer-Encoding"
        length = self.headers.get("Content-Length")
        is_length = length is None or _LENGTH.fullmatch(length)
        return None if is_length else "Content-Length must be a whole number of at most 20 digits"

    @override
    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is no request of this server's, and close the connection."""
        self.close_connection, self.request_version = True, self.protocol_version  # an answer has a head
        status = HTTPStatus.NOT_IMPLEMENTED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus.BAD_REQUEST
        kind, data = self.error_page(status, message or HTTPStatus(code).phrase)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def error_page(self, status: HTTPStatus, sentence: str) -> tuple[str, bytes]:
        """Return the content type and the body of an error."""
        return "text/plain; charset=utf-8", f"{sentence}\n".encode(errors="replace")

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal is not this server's."""
