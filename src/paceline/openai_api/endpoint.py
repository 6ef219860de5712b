"""The HTTP server of OpenAI's interface, for one episode or for `paceline serve`: requests wait for their responses."""

import hmac
import json
import secrets
import threading
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from typing_extensions import override

from paceline.http.events import EventStream, HttpRefusal
from paceline.http.server import LOOPBACK, LOOPBACK_NAMES, MOST_BODY, HttpExchange, HttpResponse, HttpServer
from paceline.openai_api.requests import ApiRequest, Interface, Refusal, read_request
from paceline.openai_api.responses import error_of, models

PATHS: dict[str, Interface] = {"/v1/chat/completions": "chat", "/v1/completions": "text", "/v1/responses": "responses"}
MODELS = "/v1/models"
POLL_SECONDS = 0.02  # Seconds in which the server sees that it is to end

EndpointResponse = dict[str, Any] | EventStream | Refusal
"""Response to a request: a body, the events of a stream, or an error."""


class Pending:
    """A request that waits for its response, in the thread of its connection."""

    def __init__(self, request: ApiRequest, *, is_retry: bool, is_gone: Callable[[], bool]) -> None:
        self.request = request
        self.is_retry = is_retry
        """True if the client says that it asks again."""
        self.is_gone = is_gone
        """Returns True if the client has closed its end of the connection."""
        self.is_written = threading.Event()
        """Set once the response was written, or could not be."""
        self.was_lost = False
        """True if the client was gone by then."""
        self._has_response = threading.Event()
        self._response: EndpointResponse = Refusal("there is no response")

    def respond(self, response: EndpointResponse) -> None:
        """Give the response; only the first one counts."""
        if not self._has_response.is_set():
            self._response = response
            self._has_response.set()

    def wait(self) -> EndpointResponse:
        """Wait for it: whoever takes requests responds to all of them by the episode's end."""
        self._has_response.wait()
        return self._response


class Endpoint(HttpServer):
    """Responds to requests until it is closed: those of one episode, or of all clients of `paceline serve`."""

    wrong_host = f"the endpoint responds under {LOOPBACK} or localhost only; take base_url as it was given"

    def __init__(self, take: Callable[[Pending], None], *, address: tuple[str, int] = (LOOPBACK, 0)) -> None:
        """Listen, by default on a free port of this machine; OSError if that cannot be.

        `take` is called with each request that has been checked, in the thread of its connection. It may raise Refusal.
        """
        super().__init__(address)
        self.hosts = LOOPBACK_NAMES if address[0] in LOOPBACK_NAMES else None
        self.take = take
        self.key = secrets.token_urlsafe(24)
        self.read: Callable[[Interface, bytes], ApiRequest] = read_request
        self.models: Callable[[], dict[str, Any]] = partial(models, "policy", 0)
        self.pages: Mapping[str, Callable[[], HttpResponse]] = {}
        """Pages that need no key, by path."""
        self.when_refused: Callable[[HttpRefusal], None] = lambda refusal: None
        """Called with each refusal, in the thread of its connection."""
        self.ended: Refusal | None = None
        """Refusal of each further request; None: requests are taken."""
        self.has_refused = False
        """True if one was."""
        self._thread = threading.Thread(target=self.serve_forever, args=(POLL_SECONDS,), name="endpoint", daemon=True)

    def start(self) -> None:
        """Begin to respond."""
        self._thread.start()

    @property
    def base_url(self) -> str:
        """Address that OpenAI's clients take."""
        return f"http://{self.server_name}:{self.server_port}/v1"

    def refuse(self, pending: Pending) -> None:
        """Respond to a request with what `ended` says."""
        assert self.ended is not None
        self.has_refused = True
        pending.respond(self.ended)

    def close(self) -> None:
        """Stop listening."""
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join()
        self.server_close()

    @override
    def authorize(self, exchange: HttpExchange) -> bool:
        if exchange.command == "GET" and exchange.route in self.pages:
            return False
        scheme, _, key = exchange.headers.get("Authorization", "").partition(" ")
        is_key = hmac.compare_digest(key.strip().encode(errors="replace"), self.key.encode())
        if scheme.lower() != "bearer" or not is_key:
            problem = "the key is not this endpoint's; take api_key as it was given with its base_url"
            raise Refusal(problem, "Authorization", code="invalid_api_key", status=HTTPStatus.UNAUTHORIZED)
        return True

    @override
    def on_refusal(self, refusal: HttpRefusal) -> None:
        self.when_refused(refusal)

    @override
    def error_response(self, refusal: HttpRefusal) -> HttpResponse:
        return _json(error_of(refusal), status=refusal.status)

    @override
    def respond(self, exchange: HttpExchange) -> None:
        method, route = exchange.command, exchange.route
        if method == "GET" and route in self.pages:
            exchange.send(self.pages[route]())
        elif method == "GET" and route == MODELS:
            exchange.send(_json(self.models()))
        elif method == "POST" and route in PATHS:
            self._respond(exchange, PATHS[route])
        else:
            status = HTTPStatus.METHOD_NOT_ALLOWED if route in (*PATHS, MODELS) else HTTPStatus.NOT_FOUND
            known = f"POST {', POST '.join(PATHS)} and GET {MODELS}"
            raise Refusal(f"there is no {method} {route[:100]}; there are {known}", status=status)

    def _respond(self, exchange: HttpExchange, interface: Interface) -> None:
        """Let `take` have a request, and send the response once it is there."""
        if exchange.body is None:
            problem = f"the body must have a Content-Length of at most {MOST_BODY} bytes; send a shorter conversation"
            raise Refusal(problem, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        is_retry = exchange.headers.get("x-stainless-retry-count", "0") != "0"
        pending = Pending(self.read(interface, exchange.body), is_retry=is_retry, is_gone=exchange.is_gone)
        try:
            if self.ended is None:
                self.take(pending)
            if self.ended is not None:  # by now: nobody may take it any more
                self.refuse(pending)
            response = pending.wait()
            pending.was_lost = exchange.is_gone()
            if isinstance(response, Refusal):
                exchange.send(self.error_response(response))
            else:
                exchange.send(response if isinstance(response, EventStream) else _json(response))
        except OSError:
            pending.was_lost = True
        finally:
            pending.is_written.set()


def _json(body: dict[str, Any], *, status: int = HTTPStatus.OK) -> HttpResponse:
    data = json.dumps(body, ensure_ascii=False).encode()
    return HttpResponse(status=status, content_type="application/json", body=data)
