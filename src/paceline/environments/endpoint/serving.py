"""The HTTP server of one episode, or of `paceline serve`: for whoever has its key.

Every process of the machine may connect to a loopback port, and a page of the web may have its own name lead there (DNS
rebinding). So a request is answered only where it has the key, and its Host is this machine. The body is read within
a limit, and whatever is wrong with it is one sentence in OpenAI's form of an error.
"""

import contextlib
import hmac
import json
import os
import secrets
import select
import socket
import socketserver
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from typing_extensions import override

from paceline.openai_api.requests import ApiRequest, Interface, Refusal, read_request
from paceline.openai_api.responses import error_of, models
from paceline.runtime.connections import (
    BODY_SECONDS,
    IDLE_SECONDS,
    STRANGER_SECONDS,
    BoundedServer,
    StrictRequests,
)

ADDRESS = "127.0.0.1"
HOSTS = (ADDRESS, "localhost")
PATHS: dict[str, Interface] = {"/v1/chat/completions": "chat", "/v1/completions": "text", "/v1/responses": "responses"}
MODELS = "/v1/models"
MOST_BODY = 1 << 20
"""Bytes of a request, at most: what an environment may say in one answer."""
MOST_DRAINED = 1 << 26
"""Bytes of a longer one that are read, so that its client sees the refusal."""
LOOK_SECONDS = 0.5  # Seconds after which whoever waits for news looks whether the client is still there
FAULTY = Refusal("the answer could not be made; see the server's terminal", status=HTTPStatus.INTERNAL_SERVER_ERROR)
POLL_SECONDS = 0.02  # Seconds in which the server sees that it is to end

Page = Callable[[], tuple[HTTPStatus, str, str]]
"""Gives the status, the content type and the text of something to look at."""


class LiveEvents:
    """Events of a stream whose answer is still being made. Who makes it never waits for the client.

    What the client takes at once is written in the maker's thread, the rest in that of the connection.
    """

    def __init__(self) -> None:
        self.on_lost: Callable[[], None] = lambda: None
        """Called where the client is gone before the end."""
        self._lock, self._news = threading.Lock(), threading.Event()
        self._descriptor: int | None = None
        """Where the maker may write; None: the head is not written yet, or the connection is over."""
        self._rest, self._has_ended = bytearray(), False
        """What the connection's thread is to write, and True if nothing comes behind it."""
        self._refusal: Refusal | None = None

    def tell(self, events: bytes, *, is_last: bool = False) -> None:
        """Write further events, or leave to the connection's thread what the client does not take at once."""
        with self._lock:
            if self._descriptor is not None and not self._rest:
                # that thread meets the error too where the client is gone
                with contextlib.suppress(OSError):
                    events = events[os.write(self._descriptor, events) :]
            self._rest += events
            self._has_ended = is_last
            if self._rest or is_last:
                self._news.set()

    def refuse(self, refusal: Refusal) -> None:
        """Answer with an error; only before the first event."""
        self._refusal = refusal
        self._news.set()

    def wait(self, is_gone: Callable[[], bool]) -> None:
        """Wait for the first events; raises Refusal where there will be none, OSError where the client is gone."""
        while not self._news.wait(LOOK_SECONDS):
            if is_gone():
                raise ConnectionAbortedError
        if self._refusal is not None:
            raise self._refusal

    def write(self, connection: socket.socket, is_gone: Callable[[], bool]) -> None:
        """Write what there is and what comes, to the end; raises OSError where the client is gone."""
        try:
            while True:
                with self._lock:
                    events, has_ended = bytes(self._rest), self._has_ended
                    self._news.clear()
                    # a socket with a timeout does not block: the maker gets an error where the client takes nothing
                    self._descriptor = connection.fileno()
                if events:
                    connection.sendall(events)
                    with self._lock:
                        del self._rest[: len(events)]
                elif has_ended:
                    return
                elif not self._news.wait(LOOK_SECONDS) and is_gone():
                    raise ConnectionAbortedError
        finally:
            with self._lock:
                self._descriptor = None


EndpointReply = dict[str, Any] | Iterable[bytes] | LiveEvents | Refusal
"""What a request gets: a body, the events of a stream, or an error."""


class Pending:
    """A request that waits for its answer, in the thread of its connection."""

    def __init__(self, request: ApiRequest, *, is_retry: bool, is_gone: Callable[[], bool]) -> None:
        self.request = request
        self.is_retry = is_retry
        """True if the client says that it asks again."""
        self.is_gone = is_gone
        """Returns True if the client has closed its end of the connection."""
        self.is_written = threading.Event()
        """Set once the answer was written, or could not be."""
        self.was_lost = False
        """True if the client was gone by then."""
        self._is_answered = threading.Event()
        self._reply: EndpointReply = Refusal("there is no answer")

    def answer(self, reply: EndpointReply) -> None:
        """Give the answer; only the first one counts."""
        if not self._is_answered.is_set():
            self._reply = reply
            self._is_answered.set()

    def wait(self) -> EndpointReply:
        """Wait for it: whoever takes requests answers all of them by the episode's end."""
        self._is_answered.wait()
        return self._reply


class Endpoint(BoundedServer):
    """Answers requests until it is closed: those of one episode, or of whoever `paceline serve` is for."""

    def __init__(self, take: Callable[[Pending], None], *, address: tuple[str, int] = (ADDRESS, 0)) -> None:
        """Listen, by default on a free port of this machine; OSError if that cannot be.

        `take` is called with each request that has been checked, in the thread of its connection. It may raise Refusal.
        """
        self.take = take
        self.key = secrets.token_urlsafe(24)
        self.read: Callable[[Interface, bytes], ApiRequest] = read_request
        self.models: Callable[[], dict[str, Any]] = partial(models, "policy", 0)
        self.pages: Mapping[str, Page] = {}
        """What there is to look at without a key, by path."""
        self.on_refusal: Callable[[Refusal], None] = lambda refusal: None
        """Told of each refused request, in the thread of its connection."""
        self.ended: Refusal | None = None
        """What each further request is refused with; None: requests are taken."""
        self.has_refused = False
        """True if one was."""
        self.hosts = HOSTS if address[0] in HOSTS else None
        """Names that a request may have for this machine; None: any."""
        super().__init__(address, _Requests)
        self._thread = threading.Thread(target=self.serve_forever, args=(POLL_SECONDS,), name="endpoint", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    @property
    def base_url(self) -> str:
        """Address that OpenAI's clients take."""
        return f"http://{self.server_name}:{self.server_port}/v1"

    @override
    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # that of HTTPServer asks for the host's name, which may take seconds
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def refuse(self, pending: Pending) -> None:
        """Answer a request with what `ended` says."""
        assert self.ended is not None
        self.has_refused = True
        pending.answer(self.ended)

    def close(self) -> None:
        """Stop listening."""
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join()
        self.server_close()


class _Requests(StrictRequests):
    server: Endpoint

    def do_POST(self) -> None:
        self._respond(self._posted)

    def do_GET(self) -> None:
        self._respond(self._got)

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_GET

    def _respond(self, respond: Callable[[bytes | None], None]) -> None:
        try:
            try:
                self._check_host()
                page = self.server.pages.get(self.path.partition("?")[0])
                is_page = page is not None and self.command == "GET"
                if not is_page:
                    self._check_key()
                    self.at.is_known = True
            except Refusal:
                self._body()  # read and thrown away, so that its client sees the refusal
                raise
            self.at.give(BODY_SECONDS if self.at.is_known else None)
            body = self._body()
            self.at.give(None)
            if page is not None and is_page:
                status, kind, text = page()
                self._write(status, kind, text.encode())
            else:
                respond(body)
        except Refusal as refusal:
            self.server.on_refusal(refusal)
            self._send(refusal)
        except OSError:  # the client is gone
            raise
        except Exception as error:  # noqa: BLE001 - the border: a fault in one answer ends that answer alone
            traceback.print_exception(error)
            self.server.on_refusal(FAULTY)
            self.close_connection = True
            self._send(FAULTY)
        self.at.give(IDLE_SECONDS if self.at.is_known else STRANGER_SECONDS)

    def _body(self) -> bytes | None:
        """Read the body; None: it is too long."""
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

    def _check_host(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if self.server.hosts is not None and host not in self.server.hosts:
            said = f"the endpoint answers under {ADDRESS} or localhost only; take base_url as it was given"
            raise Refusal(said, "Host", status=HTTPStatus.MISDIRECTED_REQUEST)

    def _check_key(self) -> None:
        given = self.headers.get("Authorization", "").partition(" ")
        is_key = hmac.compare_digest(given[2].strip().encode(errors="replace"), self.server.key.encode())
        if given[0].lower() != "bearer" or not is_key:
            said = "the key is not this endpoint's; take api_key as it was given with its base_url"
            raise Refusal(said, "Authorization", code="invalid_api_key", status=HTTPStatus.UNAUTHORIZED)

    def _posted(self, body: bytes | None) -> None:
        path = self.path.partition("?")[0]
        if path not in PATHS:
            self._refuse_path(path)
        if body is None:
            said = f"the body must have a Content-Length of at most {MOST_BODY} bytes; send a shorter conversation"
            raise Refusal(said, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        is_retry = self.headers.get("x-stainless-retry-count", "0") != "0"
        pending = Pending(self.server.read(PATHS[path], body), is_retry=is_retry, is_gone=self._is_gone)
        try:
            if self.server.ended is None:
                self.server.take(pending)
            if self.server.ended is not None:  # by now: nobody may take it any more
                self.server.refuse(pending)
            reply = pending.wait()
            pending.was_lost = self._is_gone()
            self._send(reply)
        except OSError:
            pending.was_lost = True
        finally:
            pending.is_written.set()

    def _got(self, body: bytes | None) -> None:
        path = self.path.partition("?")[0]
        if path != MODELS or self.command != "GET":
            self._refuse_path(path)
        self._send(self.server.models())

    def _refuse_path(self, path: str) -> None:
        is_known = path in (*PATHS, MODELS)
        status = HTTPStatus.METHOD_NOT_ALLOWED if is_known else HTTPStatus.NOT_FOUND
        said = f"there is no {self.command} {path[:100]}; there are POST {', POST '.join(PATHS)} and GET {MODELS}"
        raise Refusal(said, status=status)

    def _is_gone(self) -> bool:
        with contextlib.suppress(OSError):
            arrived = select.poll()
            arrived.register(self.connection, select.POLLIN)
            return bool(arrived.poll(0)) and self.connection.recv(1, socket.MSG_PEEK) == b""
        return True

    def _send(self, reply: EndpointReply) -> None:
        if isinstance(reply, Refusal):
            self._write(reply.status, "application/json", _encoded(error_of(reply)))
        elif isinstance(reply, dict):
            self._write(HTTPStatus.OK, "application/json", _encoded(reply))
        elif isinstance(reply, LiveEvents):
            self._send_live(reply)
        else:
            self._send_head_of_events()
            self.wfile.write(b"".join(reply))

    def _write(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def _send_head_of_events(self) -> None:
        self.close_connection = True  # its end is the stream's: events have no length
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()

    def _send_live(self, events: LiveEvents) -> None:
        try:
            events.wait(self._is_gone)  # before the head: until there is something to tell, it may be a refusal
            self._send_head_of_events()
            events.write(self.connection, self._is_gone)
        except OSError:
            events.on_lost()
            raise

    @override
    def error_page(self, status: HTTPStatus, sentence: str) -> tuple[str, bytes]:
        return "application/json", _encoded(error_of(Refusal(sentence, status=status)))


def _encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode()
