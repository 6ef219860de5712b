"""The HTTP server of `paceline serve`: an endpoint in front of a model, numbers, a page, and an orderly end."""

import html
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus

from paceline.errors import ConfigError, PacelineError
from paceline.http.events import EventStream, HttpRefusal
from paceline.http.server import HttpResponse
from paceline.openai_api.endpoint import Endpoint, Pending
from paceline.openai_api.requests import ApiRequest, Refusal, read_request
from paceline.openai_api.responses import (
    ChoiceEvents,
    ResponseEvents,
    body_of,
    error_event,
    models,
    stream_events,
)
from paceline.serving.choices import CLIENT_GONE, ResponsePart, RunningResponse
from paceline.serving.model import ServedModel

STOPPING = Refusal("the server is stopping; ask another one", code="stopping", status=HTTPStatus.SERVICE_UNAVAILABLE)
BROKEN_OFF = Refusal(
    "the server stopped before the response had ended; ask another one",
    code="stopping",
    status=HTTPStatus.SERVICE_UNAVAILABLE,
)
LAST_SECONDS = 10.0
"""Seconds after a response was broken off in which the engine ends its step, and clients read what there is."""
OUTCOMES = ("done", "refused", "gone", "failed")
HEADINGS = {
    "paceline_requests_total": ("counter", "Requests by outcome: answered, refused, left by the client, failed."),
    "paceline_tokens_total": ("counter", "Tokens of prompts that were read, and tokens that were sampled."),
    "paceline_requests_in_flight": ("gauge", "Requests that wait for a response or get one."),
    "paceline_requests_waiting": ("gauge", "Requests among these that wait for a place in the batch."),
    "paceline_request_seconds": ("summary", "Seconds from a request to the end of its response."),
    "paceline_first_token_seconds": ("summary", "Seconds from a streamed request to the first piece of its response."),
}
"""Kind and meaning of each number of `/metrics`."""
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{name} - Paceline</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:45em;margin:3em auto;padding:0 1em;color-scheme:light dark}}
pre{{overflow:auto;padding:1em;border:1px solid #8886}}td{{padding:.2em 1em .2em 0}}</style>
<h1>{name}</h1>
<p>This server responds by OpenAI's interface under <code>{url}</code>, for whoever has its key.</p>
<pre>curl {url}/chat/completions -H "Authorization: Bearer $KEY" -H "Content-Type: application/json" \\
    -d '{{"messages": [{{"role": "user", "content": "Hello."}}]}}'</pre>
<table>{rows}</table>
<p><a href="/metrics">Numbers</a> for Prometheus; <a href="/health">health</a>.</p>
</html>
"""


class ModelServer:
    """Responds to the requests of any number of clients from one model, whose engine runs, until it is stopped."""

    def __init__(self, model: ServedModel, *, host: str, port: int, key: str | None) -> None:
        """Listen; `port` 0: on any that is free, `key` None: a new one.

        Raises:
            ConfigError: the address cannot be listened on.
        """
        self.model, self._created = model, int(time.time())
        try:
            self.endpoint = Endpoint(self._take, address=(host, port))
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"--host {host} --port {port} cannot be listened on ({error}); give others, or port 0 for a free one"
            ) from error
        self.endpoint.key = self.endpoint.key if key is None else key
        self.endpoint.read = partial(read_request, is_served=True)
        self.endpoint.models = partial(models, model.name, self._created)
        self.endpoint.when_refused = self.refused
        self.endpoint.pages = {"/": self._page, "/health": self._health, "/metrics": self._metrics}
        self._lock = threading.Lock()
        self._outcomes, self._seconds, self._pending = Counter[str](), defaultdict[str, float](float), set[Pending]()
        self.endpoint.start()

    @property
    def failure(self) -> PacelineError | None:
        """Error that ended the engine; None: there is none."""
        return self.model.generations.failure

    def wait(self, seconds: float) -> bool:
        """Wait until the engine has ended, or so many seconds have passed; returns True if it has ended."""
        return self.model.generations.ended.wait(seconds)

    def stop(self, grace: float) -> int:
        """Refuse further requests, and respond to those in flight within `grace` seconds; returns how many were cut."""
        self.endpoint.ended = STOPPING
        self.model.generations.close(STOPPING)
        broken = 0 if self.wait(grace) else self.model.generations.break_off(BROKEN_OFF)
        until = time.monotonic() + LAST_SECONDS
        self.wait(LAST_SECONDS)
        for pending in self._in_flight():
            pending.is_written.wait(max(0.0, until - time.monotonic()))
        self.endpoint.close()
        return broken

    # --- requests, each in the thread of its connection

    def _take(self, pending: Pending) -> None:
        """Respond to a request; raises Refusal."""
        started, request = time.perf_counter(), pending.request
        self._in_flight(pending)
        if request.model not in ("policy", self.model.name):
            problem = f"there is no model {request.model!r:.100}; name {self.model.name!r}, or leave the name out"
            raise Refusal(problem, "model", code="model_not_found", status=HTTPStatus.NOT_FOUND)
        request = replace(request, model=self.model.name, created=int(time.time()))
        if request.stream:
            events = EventStream()
            streamed = StreamedResponse(self, request, events, started)
            events.on_lost = partial(streamed.lose, self.model.begin(request, streamed.add))
            pending.respond(events)
            return
        turns = self.model.begin(request).wait(pending.is_gone)
        self.done(started)
        pending.respond(body_of(request, turns))

    def _in_flight(self, pending: Pending | None = None) -> set[Pending]:
        """Return the requests whose responses are not written, with a new one."""
        with self._lock:
            self._pending = {earlier for earlier in self._pending if not earlier.is_written.is_set()}
            if pending is not None:
                self._pending.add(pending)
            return set(self._pending)

    # --- numbers

    def done(self, started: float) -> None:
        """Count a request that got its response; `started` by `time.perf_counter`."""
        self.count("done")
        self.add_seconds("paceline_request_seconds", started)

    def refused(self, refusal: HttpRefusal) -> None:
        """Count one that was not."""
        is_failure = refusal.status >= HTTPStatus.INTERNAL_SERVER_ERROR and refusal is not STOPPING
        self.count("gone" if refusal.status == CLIENT_GONE else "failed" if is_failure else "refused")

    def count(self, outcome: str) -> None:
        """Count a request by how it ended."""
        with self._lock:
            self._outcomes[outcome] += 1

    def add_seconds(self, name: str, started: float) -> None:
        """Add the seconds from `started` until now to a number."""
        with self._lock:
            self._seconds[f"{name}_sum"] += time.perf_counter() - started
            self._seconds[f"{name}_count"] += 1

    def _numbers(self) -> dict[str, float]:
        """Return every number under the name by which Prometheus knows it."""
        generations = self.model.generations
        with self._lock:
            outcomes, seconds = self._outcomes.copy(), self._seconds.copy()
        return {
            **{f'paceline_requests_total{{outcome="{outcome}"}}': outcomes[outcome] for outcome in OUTCOMES},
            'paceline_tokens_total{kind="prompt"}': generations.tokens_read,
            'paceline_tokens_total{kind="completion"}': generations.tokens_sampled,
            "paceline_requests_in_flight": len(self._in_flight()),
            "paceline_requests_waiting": generations.waiting,
            **{
                f"{name}_{part}": seconds[f"{name}_{part}"]
                for name in ("paceline_request_seconds", "paceline_first_token_seconds")
                for part in ("sum", "count")
            },
        }

    def _metrics(self) -> HttpResponse:
        lines, numbers = list[str](), self._numbers()
        for name, (kind, meaning) in HEADINGS.items():
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
            lines += [f"{key} {value}" for key, value in numbers.items() if key.startswith(name)]
        content_type = "text/plain; version=0.0.4; charset=utf-8"
        return HttpResponse(content_type=content_type, body="\n".join([*lines, ""]).encode())

    def _health(self) -> HttpResponse:
        if self.model.generations.ended.is_set():
            return HttpResponse(status=HTTPStatus.SERVICE_UNAVAILABLE, body=b"the engine has ended\n")
        if self.endpoint.ended is not None:
            return HttpResponse(status=HTTPStatus.SERVICE_UNAVAILABLE, body=b"stopping\n")
        return HttpResponse(body=b"ok\n")

    def _page(self) -> HttpResponse:
        about = {
            "engine": f"{self.model.engine.path}: {self.model.engine.path_reason}",
            "tokens of a prompt and its response, at most": f"{self.model.length:,}",
            "conversations": self.model.chat_problem or "yes",
            **{name: f"{value:,.6g}" for name, value in self._numbers().items()},
        }
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{html.escape(text)}</td></tr>" for name, text in about.items()
        )
        page = PAGE.format(name=html.escape(self.model.name), url=html.escape(self.endpoint.base_url), rows=rows)
        return HttpResponse(content_type="text/html; charset=utf-8", body=page.encode())


class StreamedResponse:
    """Writes a response as the events of a stream while it is sampled, in the thread of all responses."""

    def __init__(self, server: ModelServer, request: ApiRequest, events: EventStream, started: float) -> None:
        self._server, self._request, self._events, self._started = server, request, events, started
        self._writer: ChoiceEvents | ResponseEvents | None = None
        """Writes the events; None: there was no token yet."""
        self._is_lost = False

    def lose(self, response: RunningResponse) -> None:
        """Sample no more, as the client is gone."""
        response.generation.give_up()
        if not response.is_whole:
            self._is_lost = True
            self._server.count("gone")

    def add(self, response: RunningResponse, parts: Sequence[ResponsePart] | Refusal) -> None:
        """Write new parts of the response, all of them at once."""
        if self._is_lost:
            return
        if isinstance(parts, Refusal):
            self._refuse(parts)
            return
        if self._writer is None:
            self._writer = stream_events(self._request, response.number, is_streamed=True)
            self._server.add_seconds("paceline_first_token_seconds", self._started)
        events = [event for index, part in parts for event in self._writer.of(index, part)]
        if response.is_whole:
            events += self._writer.last(response.turns)
            self._server.done(self._started)
        self._events.add(b"".join(events), is_last=response.is_whole)

    def _refuse(self, refusal: Refusal) -> None:
        if self._writer is not None:
            self._server.refused(refusal)
            self._events.add(error_event(refusal), is_last=True)
        else:
            self._events.refuse(refusal)
