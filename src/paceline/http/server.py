"""The HTTP server of endpoints, `paceline serve` and the viewer: who may ask, within which bounds, and events.

Every process of the machine may connect to a loopback port, and a page of the web may have its own name lead there
(DNS rebinding). So a request gets its response only where its Host is this server's and it shows the server's key.

A connection is a stranger's until a request on it has shown the key. Strangers have `STRANGER_SECONDS` for that; where
there are too many connections, the oldest stranger's is closed for a new one. A head that two readers could read
differently is refused, and a body is read up to `MOST_BODY` bytes.
"""

import contextlib
import errno
import re
import resource
import select
import socket
import socketserver
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import override

from paceline.http.events import EventStream, HttpRefusal

LOOPBACK = "127.0.0.1"
LOOPBACK_NAMES = (LOOPBACK, "localhost")
MOST_CONNECTIONS = 1024
"""Connections at the same time, at most; fewer where the process may open fewer files."""
MOST_BODY = 1 << 20
"""Bytes of a request's body, at most: what an environment may say at once."""
MOST_DRAINED = 1 << 26
"""Bytes of a longer body that are read, so that its client sees the refusal."""
STRANGER_SECONDS = 10.0
"""Seconds for the head of a request with the key, and for the response to one without."""
BODY_SECONDS = 60.0
"""Seconds for the body of a request."""
IDLE_SECONDS = 600.0
"""Seconds between two requests of a client that has the key."""
LOOK_SECONDS = 0.25
"""Seconds between two looks for connections whose deadline has passed."""
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of `accept` where the process or the machine can open no further connection."""
EXHAUSTED_SECONDS = 0.02  # until the next try to accept

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LENGTH = re.compile(r"[0-9]{1,20}")  # `int` refuses thousands of digits
ONCE = ("Host", "Content-Length", "Transfer-Encoding", "Authorization")
"""Headers of which a second one would let two readers see two requests."""


FAULT = "the response could not be made; see the server's terminal"


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpResponse:
    """A whole response."""

    status: int = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class Connection:
    """An open connection and its deadline."""

    def __init__(self, request: socket.socket) -> None:
        self.socket = request
        self.is_known = False
        """True once a request on it has shown the key."""
        self.deadline: float | None = time.monotonic() + STRANGER_SECONDS
        """When it is closed, on the monotonic clock; None: the server is at work for it."""

    def set_deadline(self, seconds: float | None) -> None:
        """Set the deadline anew; None: there is none, but for a stranger the former one stays."""
        if seconds is not None:
            self.deadline = time.monotonic() + seconds
        elif self.is_known:
            self.deadline = None

    def end(self) -> None:
        """Close both directions, which ends the thread that reads or writes."""
        with contextlib.suppress(OSError):  # it is closed already
            self.socket.shutdown(socket.SHUT_RDWR)


class HttpServer(ThreadingHTTPServer, ABC):
    """A server that silent, slow or many strangers cannot close to others.

    `authorize` and `respond` may raise HttpRefusal. They are called in the thread of the request's connection.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    wrong_host = "this server responds under its own address only"
    """Refusal of a request with another Host."""

    def __init__(self, address: tuple[str, int]) -> None:
        """Listen; OSError or OverflowError if that cannot be."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most_connections = MOST_CONNECTIONS if files < 0 else max(8, min(MOST_CONNECTIONS, files // 2))
        self.hosts: Collection[str] | None = None
        """Hosts that a request may name, with a port where it has to be that one; None: any."""
        self._connections = dict[socket.socket, Connection]()
        """Open connections, oldest first."""
        self._connections_lock, self._looked = threading.Lock(), 0.0
        super().__init__(address, HttpExchange)

    @abstractmethod
    def authorize(self, exchange: "HttpExchange") -> bool:
        """Return True if a request shows the key; False: it needs none."""

    @abstractmethod
    def respond(self, exchange: "HttpExchange") -> None:
        """Send the response to a request."""

    def error_response(self, refusal: HttpRefusal) -> HttpResponse:
        """Return the response to a request that is refused."""
        return HttpResponse(status=refusal.status, body=f"{refusal}\n".encode(errors="replace"))

    def on_refusal(self, refusal: HttpRefusal) -> None:
        """Called with each refusal, in the thread of its connection."""

    def check(self, exchange: "HttpExchange") -> None:
        """Refuse a request for another host or without the key."""
        host = exchange.headers.get("Host", "")
        if self.hosts is not None and not {host, host.rpartition(":")[0]} & {*self.hosts}:
            raise HttpRefusal(self.wrong_host, status=HTTPStatus.MISDIRECTED_REQUEST)
        if self.authorize(exchange):
            exchange.at.is_known = True

    def connection_of(self, request: socket.socket) -> Connection:
        """Return the connection behind a socket."""
        with self._connections_lock:
            return self._connections[request]

    @override
    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # that of HTTPServer asks for the host's name, which may take seconds
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

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
            late = [at for at in self._connections.values() if at.deadline is not None and at.deadline < now]
        for connection in late:
            connection.end()

    @override
    def shutdown_request(self, request: Any) -> None:
        with self._connections_lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing for a client that went away; the connection is closed."""

    def _end_oldest_stranger(self) -> bool:
        with self._connections_lock:
            oldest = next((at for at in self._connections.values() if not at.is_known), None)
            if oldest is not None:  # its thread has yet to end, and is counted no more
                del self._connections[oldest.socket]
        if oldest is not None:
            oldest.end()
        return oldest is not None


class HttpExchange(BaseHTTPRequestHandler):
    """A connection's request, and the way to respond; a head is read in the one way in which every reader would."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "paceline", ""
    timeout = IDLE_SECONDS
    disable_nagle_algorithm = True  # the body is a second packet, which would wait for the first one's receipt
    server: HttpServer
    body: bytes | None
    """Body of the request; None: it is longer than `MOST_BODY`."""

    @override
    def setup(self) -> None:
        super().setup()
        self.at = self.server.connection_of(self.request)

    @property
    def route(self) -> str:
        """Path of the request without its query."""
        return self.path.partition("?")[0]

    def is_gone(self) -> bool:
        """Return True if the client has closed its end of the connection."""
        with contextlib.suppress(OSError):
            arrived = select.poll()
            arrived.register(self.connection, select.POLLIN)
            return bool(arrived.poll(0)) and self.connection.recv(1, socket.MSG_PEEK) == b""
        return True

    def send(self, response: HttpResponse | EventStream) -> None:
        """Write a response; raises OSError where the client is gone, HttpRefusal for a stream that was refused."""
        if isinstance(response, HttpResponse):
            self.send_response(response.status)
            for name, value in {**response.headers, "Content-Type": response.content_type}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(response.body)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(response.body)
            return
        try:
            response.wait(self.is_gone)  # before the head: until there is an event, it may be a refusal
            self.close_connection = True  # its end is the stream's: events have no length
            self.send_response(HTTPStatus.OK)
            headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "Connection": "close"}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            response.write_to(self.connection, self.is_gone)
        except OSError:
            response.on_lost()
            raise

    def do_GET(self) -> None:
        """Check the request, read its body and respond, whatever its method."""
        try:
            try:
                self.server.check(self)
            except HttpRefusal:
                self._read_body()  # and throw it away, so that its client sees the refusal
                raise
            self.at.set_deadline(BODY_SECONDS if self.at.is_known else None)
            self.body = self._read_body()
            self.at.set_deadline(None)
            self.server.respond(self)
        except HttpRefusal as refusal:
            self._refuse(refusal)
        except OSError:  # the client is gone
            raise
        except Exception as error:  # noqa: BLE001 - the border: a fault in one response ends that response alone
            traceback.print_exception(error)
            self.close_connection = True
            self._refuse(HttpRefusal(FAULT, status=HTTPStatus.INTERNAL_SERVER_ERROR))
        self.at.set_deadline(IDLE_SECONDS if self.at.is_known else STRANGER_SECONDS)

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_GET

    def _refuse(self, refusal: HttpRefusal) -> None:
        self.server.on_refusal(refusal)
        self.send(self.server.error_response(refusal))

    def _read_body(self) -> bytes | None:
        size = int(self.headers.get("Content-Length", "0"))
        if size <= MOST_BODY:
            body = self.rfile.read(size)
            if len(body) < size:
                raise ConnectionAbortedError
            return body
        self.close_connection = True
        left = size if size <= MOST_DRAINED else 0
        while left > 0 and (read := self.rfile.read(min(left, MOST_BODY))):
            left -= len(read)
        return None

    @override
    def parse_request(self) -> bool:
        """Read the head; one that can be read in two ways gets status 400, and the connection closed."""
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
        """Respond to what is no request of this server's, and close the connection."""
        self.close_connection, self.request_version = True, self.protocol_version  # a response has a head
        status = HTTPStatus.NOT_IMPLEMENTED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus.BAD_REQUEST
        self.send(self.server.error_response(HttpRefusal(message or HTTPStatus(code).phrase, status=status)))

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the terminal is not this server's."""
