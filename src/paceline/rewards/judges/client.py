"""Calls of a judge's service, `POST /chat/completions` of OpenAI's interface: tries, deadlines, and the key.

A call has `timeout` seconds, and all calls of a batch have a deadline together. Calls that have not ended by then count
as failed; their threads continue until their `timeout`, and a verdict that still comes is cached, as it was paid for. A
completion without a verdict gets no reward of 0: it has failed, as if a reward function had raised.
"""

import email.utils
import json
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from paceline.errors import RewardError
from paceline.http.client import HttpCallError, HttpClient, HttpReply, HttpTimeout
from paceline.rewards.judges.own_service import OwnService
from paceline.rewards.judges.prompts import JudgeFailure, JudgeVerdict, VerdictRequest, short
from paceline.rewards.judges.settings import JudgeSettings, Spending, VerdictCache
from paceline.runtime.activity import ACTIVITY

VERSION = 1  # of what a verdict's hash is made of
PAUSE_SECONDS = 0.5  # before the second try; each further pause is twice as long
LONGEST_PAUSE = 60.0
PROBE_SECONDS = 15.0  # of the look at /models before a run
LARGEST_RESPONSE = 4 << 20  # Bytes
TEMPLATE_TOKENS = 256  # that a chat template may add to a request, at most
WAIT_SECONDS = 1.0  # between two looks of a batch at its deadline
TRY_AGAIN = ("connection", "malformed", "server", "timeout")
"""Kinds of failure after which the next try may succeed."""
KEY_STATUSES = (401, 403)  # whose message may quote the key
UNKNOWN_FIELD_STATUSES = (400, 422)
TRIAL = json.dumps({"messages": [{"role": "user", "content": "1"}], "max_tokens": 1}).encode()
"""What a service of the run's own is asked before the run."""

# How services differ on the same request: fields that are left out, and renamed. The first form that a service takes
# is kept. OpenAI's reasoning models want the second, older services the third.
FORMS: Sequence[tuple[frozenset[str], Mapping[str, str]]] = (
    (frozenset(), {}),
    (frozenset({"temperature", "seed"}), {"max_tokens": "max_completion_tokens"}),
    (frozenset({"response_format"}), {}),
)
SERVED_FORM = 2
"""The form that `paceline serve` takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VerdictBatch:
    """Requests that are asked together, shared by the threads that ask."""

    until: float
    """Deadline, on the monotonic clock."""
    waiting: deque[tuple[str, VerdictRequest]] = field(default_factory=deque)
    outcomes: dict[str, JudgeVerdict | JudgeFailure] = field(default_factory=dict)
    """Verdict or failure of each request that has ended, by its hash."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    ended: threading.Event = field(default_factory=threading.Event)
    """Nobody waits any more: nothing new is asked."""


class JudgeClient:
    """Asks a service for verdicts, each once for what was never asked before."""

    def __init__(
        self, url: str, settings: JudgeSettings, cache: VerdictCache, service: OwnService | None = None
    ) -> None:
        """`url`: the address before `/chat/completions`, or the model of a `service` of the run's own."""
        self.url, self.settings, self.cache, self.service = url.rstrip("/"), settings, cache, service
        self.spending = Spending(calls=settings.call_budget, tokens=settings.token_budget)
        self._http = HttpClient(url if service is None else "http://127.0.0.1")
        self._under_way = threading.BoundedSemaphore(settings.concurrency)  # also calls that a batch has given up
        # of FORMS, the first that the service has taken
        self._form: int | None = None if service is None else SERVED_FORM

    @property
    def location(self) -> str:
        """Address of the judge, for a sentence after its name."""
        return f"at {self.url}" if self.service is None else "served by this run"

    @property
    def _base(self) -> str:
        return self.url if self.service is None else self.service.url

    def probe(self) -> str:
        """Ask the service for its models, which costs nothing; return a remark, or "". One of the run's own is started
        and asked for a token.

        Raises:
            RewardError: it cannot be reached, does not take the key, or holds no conversations.
        """
        remedy = "check that the service runs there and, with a key, that key_env names its variable"
        seconds, path, data = PROBE_SECONDS, "/models", None
        if self.service is not None:
            self.service.start()
            seconds, path, data = self.settings.timeout, "/chat/completions", TRIAL
            remedy = "name a model that `paceline serve` has"
        try:
            reply = self._call(path, data, seconds)
        except HttpCallError as error:
            why = short(self._redacted(str(error)))
            raise RewardError(f"--reward-funcs judge:{self.url} does not respond: {why}; {remedy}") from None
        if not reply.is_success:
            if self.service is not None:
                failure = self._of_status(reply)
                raise RewardError(f"--reward-funcs judge:{self.url} does not respond: {failure}; {remedy}")
            if reply.status not in KEY_STATUSES:
                return ""  # a service without this list
            raise RewardError(f"--reward-funcs judge:{self.url} responds with {reply.status}; {remedy}")
        names = list[str]()
        with suppress(ValueError, TypeError, KeyError):
            names = [str(model["id"]) for model in json.loads(self._text(reply))["data"]]
        if not names or self.settings.model in names:
            return ""
        return f"it lists {short(', '.join(names))} and not {self.settings.model}"

    def ask(self, requests: Sequence[VerdictRequest], *, seconds: float) -> list[JudgeVerdict | JudgeFailure]:
        """The verdict of each request, or why there is none; in their order, whatever the order of the responses.

        Equal requests are asked once. What has not ended after `seconds` has failed.
        """
        if self.service is not None:
            self.service.start()
        keys = [self.key(request) for request in requests]
        batch = VerdictBatch(until=time.monotonic() + seconds)
        self._sort(dict(zip(keys, requests, strict=True)), batch)
        if batch.waiting:
            self._key()  # raises here rather than in a thread
        total = len(batch.outcomes) + len(batch.waiting)
        self.spending.add(verdicts=total, cached=len(batch.outcomes))
        try:
            for number in range(min(self.settings.concurrency, len(batch.waiting))):
                threading.Thread(target=self._work, args=(batch,), name=f"judge-{number}", daemon=True).start()
            with batch.changed:
                while len(batch.outcomes) < total and (left := batch.until - time.monotonic()) > 0:
                    ACTIVITY.beat("judge", f"{len(batch.outcomes)} of {total} verdicts")
                    batch.changed.wait(min(left, WAIT_SECONDS))
        finally:
            batch.ended.set()
        late = JudgeFailure("timeout", f"not asked and answered within the batch's {seconds:g} seconds")
        with batch.changed:
            outcomes = {key: batch.outcomes.get(key, late) for key in keys}
        for outcome in outcomes.values():
            if isinstance(outcome, JudgeFailure):
                self.spending.add(**{f"failed_{outcome.kind}": 1})
        return [outcomes[key] for key in keys]

    def _sort(self, requests: Mapping[str, VerdictRequest], batch: VerdictBatch) -> None:
        """Find what is in the cache, and have the rest wait in its order."""
        for key, request in requests.items():
            text = self.cache.find(key)
            with suppress(JudgeFailure):  # a file that somebody changed is asked for again
                if text is not None:
                    batch.outcomes[key] = request.read(text)
            if key not in batch.outcomes:
                batch.waiting.append((key, request))

    def _work(self, batch: VerdictBatch) -> None:
        """Ask for one after another until none waits, or the batch has ended."""
        while not batch.ended.is_set():
            try:
                key, request = batch.waiting.popleft()
            except IndexError:
                return
            outcome: JudgeVerdict | JudgeFailure = JudgeFailure("connection", "the call broke off")
            try:
                outcome = self._verdict(key, request, batch)
            finally:
                with batch.changed:
                    batch.outcomes[key] = outcome
                    batch.changed.notify_all()

    def key(self, request: VerdictRequest) -> str:
        """Hash of all that decides a verdict: address and model, or the files of a model of the run's own, texts, and
        the number of the repetition."""
        settings = self.settings
        model = (self.url, settings.model) if self.service is None else ("own", *self.service.identity)
        decides = (VERSION, *model, settings.temperature, settings.verdict_tokens, request.repeat)
        return blake2b(json.dumps([*decides, request.messages, request.schema]).encode(), digest_size=20).hexdigest()

    def _verdict(self, key: str, request: VerdictRequest, batch: VerdictBatch) -> JudgeVerdict | JudgeFailure:
        """Ask until there is a verdict, tries or time run out, or the failure will not pass."""
        attempt = 0
        while True:
            try:
                text = self._text_of(key, request, attempt, batch.until)
                verdict = request.read(text)
            except JudgeFailure as error:
                pause = max(backoff(key, attempt), error.retry_after)
                why_ended = self.service.why_ended if self.service is not None else ""
                is_last = bool(why_ended) or error.kind not in TRY_AGAIN or attempt >= self.settings.retries
                if is_last or time.monotonic() + pause >= batch.until or batch.ended.wait(pause):
                    tries = f", in {attempt + 1} tries" if attempt else ""
                    # a process that is ending refuses connections before its status is known
                    why = why_ended if why_ended and error.kind == "connection" else error
                    return JudgeFailure(error.kind, f"{why}{tries}")
            else:
                try:
                    self.cache.keep(key, text)
                except OSError:
                    self.spending.add(unsaved=1)  # a full disk costs the cache, not the verdict
                return verdict
            attempt += 1
            self.spending.add(retries=1)

    def _text_of(self, key: str, request: VerdictRequest, attempt: int, until: float) -> str:
        """The text of a verdict, by the form of the request that the service takes."""
        settings, messages = self.settings, request.messages
        body: dict[str, Any] = {
            "model": settings.model,
            "messages": messages,
            "temperature": settings.temperature,
            "seed": int(blake2b(f"{key} {attempt}".encode(), digest_size=4).hexdigest(), 16) >> 1,
            "max_tokens": settings.verdict_tokens,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "verdict", "strict": True, "schema": request.schema},
            },
        }
        # No token is less than a byte.
        read = len(json.dumps([messages, request.schema], ensure_ascii=False).encode())
        forms = range(len(FORMS)) if self._form is None else (self._form,)
        for form in forms:
            left_out, renamed = FORMS[form]
            sent = {renamed.get(name, name): value for name, value in body.items() if name not in left_out}
            try:
                text = self._post(sent, read + TEMPLATE_TOKENS + settings.verdict_tokens, until)
            except JudgeFailure as error:
                if error.status not in UNKNOWN_FIELD_STATUSES or form == forms[-1]:
                    raise
            else:
                self._form = form
                return text
        raise AssertionError("unreachable: the last form returns or raises")

    def _post(self, body: Mapping[str, Any], most: int, until: float) -> str:
        """One call: what the model said; `most` tokens at most.

        A call whose reply does not come may have cost what it could; one that is refused by a status costs nothing.
        """
        seconds = self.settings.timeout
        if not self._under_way.acquire(timeout=max(0.0, until - time.monotonic())) or time.monotonic() >= until:
            raise JudgeFailure("timeout", "the batch's deadline has passed")
        try:
            return self._send(body, most, seconds)
        finally:
            self._under_way.release()

    def _send(self, body: Mapping[str, Any], most: int, seconds: float) -> str:
        if self.service is not None and (why := self.service.why_ended):
            raise JudgeFailure("connection", why)
        self._key()  # raises before anything is spent
        self.spending.take(most)
        spent, started = most, time.perf_counter()
        try:
            reply = self._call("/chat/completions", json.dumps(body).encode(), seconds)
            if not reply.is_success:
                spent = 0
                raise self._of_status(reply)
            if reply.body is None:
                raise JudgeFailure("malformed", f"a response of more than {LARGEST_RESPONSE} bytes")
            text, read, written = _completion(self._text(reply), self.settings, most)
            spent = read + written if read or written else most
            self.spending.add(answered=1, latency_sum=time.perf_counter() - started)
            self.spending.add(tokens_read=read, tokens_written=written)
        except HttpTimeout as error:
            raise JudgeFailure("timeout", str(error)) from None
        except HttpCallError as error:
            spent = most if error.was_sent else 0
            raise JudgeFailure("connection", short(self._redacted(str(error)))) from None
        finally:
            self.spending.settle(most, spent)
        if isinstance(text, JudgeFailure):
            raise text
        return self._redacted(text)

    def _call(self, path: str, data: bytes | None, seconds: float) -> HttpReply:
        headers = self._headers()
        return self._http.call(
            f"{self._base}{path}", data=data, headers=headers, seconds=seconds, limit=LARGEST_RESPONSE
        )

    def _text(self, reply: HttpReply) -> str:
        """The body of a reply; whatever a service sends back of the key ends here."""
        return self._redacted((reply.body or b"").decode("utf-8", "replace"))

    def _of_status(self, reply: HttpReply) -> JudgeFailure:
        kind = "server" if reply.may_pass else "rejected"
        message = "" if reply.status in KEY_STATUSES else short(self._text(reply)[:2000])
        after = retry_after(reply.headers.get("Retry-After", ""), time.time())
        asks = f", which asks to wait {after:g} seconds" if after else ""
        return JudgeFailure(
            kind, f"status {reply.status}{message and f': {message}'}{asks}", status=reply.status, retry_after=after
        )

    def _headers(self) -> dict[str, str]:
        headers, key = {"Content-Type": "application/json", "Accept": "application/json"}, self._key()
        if key:
            headers["Authorization"] = f"Bearer {key}"
        return headers

    def _key(self) -> str:
        name = self.settings.key_env
        if self.service is not None:
            return self.service.key
        if not name:
            return ""
        key = os.environ.get(name, "").strip()
        if not key or not key.isascii() or not key.isprintable():
            raise RewardError(
                f"--reward-funcs judge: key_env={name} must name an environment variable with the service's key, and "
                "it is empty or not plain text; set it where the run starts"
            )
        return key

    def _redacted(self, text: str) -> str:
        key = self._key()
        return text.replace(key, "(key)") if key else text


def backoff(key: str, attempt: int) -> float:
    """Seconds before the next try: twice as long each time, and spread by what is asked, the same in every run.

    >>> [0.5 * 2**attempt <= backoff("ab", attempt) < 2**attempt for attempt in range(3)]
    [True, True, True]
    """
    share = int(blake2b(f"{key} {attempt}".encode(), digest_size=4).hexdigest(), 16) / 2**32
    return min(LONGEST_PAUSE, PAUSE_SECONDS * 2.0**attempt) * (1 + share)


def retry_after(header: str, now: float) -> float:
    """Seconds of a `Retry-After` header, a number or a date; 0.0 where it says nothing.

    >>> retry_after("3", 0.0), retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 50.0), retry_after("soon", 0.0)
    (3.0, 10.0, 0.0)
    """
    if header.strip().isdecimal():
        return float(header)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - now)
    except (ValueError, OverflowError):
        return 0.0


def _completion(received: str, settings: JudgeSettings, most: int) -> tuple[str | JudgeFailure, int, int]:
    """The model's text in a response of the interface, or why that is no verdict; tokens read and written.

    Numbers that a call of `most` tokens cannot have had are not believed, and both are 0.
    """
    try:
        response = json.loads(received)
        choice = response["choices"][0]
        content, refusal, reason = (
            choice["message"].get("content"),
            choice["message"].get("refusal"),
            choice.get("finish_reason"),
        )
        usage = response.get("usage") or {}
        read, written = (usage.get(f"{name}_tokens") for name in ("prompt", "completion"))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return JudgeFailure("malformed", f"no response of the chat interface: {short(received)}"), 0, 0
    if not (type(read) is type(written) is int and min(read, written) >= 0 and read + written <= most):
        read = written = 0
    if refusal or reason == "content_filter":
        failure = JudgeFailure("refused", f"the judge refused: {short(str(refusal or reason))}")
    elif reason == "length":
        cut = f"the verdict was cut at {settings.verdict_tokens} tokens; raise verdict_tokens"
        failure = JudgeFailure("malformed", cut)
    elif not isinstance(content, str):
        failure = JudgeFailure("malformed", "a response without text")
    else:
        return content, read, written
    return failure, read, written
