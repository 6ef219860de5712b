"""Calls of a judge's service, `POST /chat/completions` of OpenAI's interface: tries, deadlines, and the key.

Nothing here waits without a bound: a call has `timeout` seconds, all calls of a batch have a deadline together, and
calls that have not ended by then count as failed. They go on in threads of their own until their `timeout`; an answer
that still comes is kept in the cache, as it was paid for.
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
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request as HttpRequest

from paceline.errors import RewardError
from paceline.rewards.judges.cache import VerdictCache
from paceline.rewards.judges.own_service import OwnService
from paceline.rewards.judges.prompts import JudgeFailure, JudgeVerdict, VerdictRequest, short
from paceline.rewards.judges.settings import JudgeSettings, Spending
from paceline.runtime.activity import ACTIVITY
from paceline.sandbox.remote import opener, read_body

VERSION = 1  # of what a verdict's hash is made of
PAUSE_SECONDS = 0.5  # before the second try; each further pause is twice as long
LONGEST_PAUSE = 60.0
PROBE_SECONDS = 15.0  # of the look at /models before a run
LARGEST_ANSWER = 4 << 20  # Bytes
TEMPLATE_TOKENS = 256  # that a chat template may add to a request, at most
WAIT_SECONDS = 1.0  # between two looks of a batch at its deadline
TRY_AGAIN = ("connection", "malformed", "server", "timeout")
"""Kinds of failure after which the next try may succeed."""
PASSING_STATUSES = (408, 425, 429)  # besides 5xx: the request was right, and may succeed later
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
OWN_FORM = 2
"""The form that `paceline serve` takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VerdictBatch:
    """Requests that are asked together, shared by the threads that ask."""

    until: float
    """Deadline, on the monotonic clock."""
    waiting: deque[tuple[str, VerdictRequest]] = field(default_factory=deque)
    found: dict[str, JudgeVerdict | JudgeFailure] = field(default_factory=dict)
    """By the hash of the request, what came of it."""
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
        self._opener = opener(url if service is None else "http://127.0.0.1")
        self._places = threading.BoundedSemaphore(settings.concurrency)  # also of calls that a batch has given up
        # of FORMS, the first that the service has taken
        self._form: int | None = None if service is None else OWN_FORM

    @property
    def place(self) -> str:
        """Where the judge is, behind its name."""
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
        seconds, path, asked = PROBE_SECONDS, "/models", None
        if self.service is not None:
            self.service.start()
            seconds, path, asked = self.settings.timeout, "/chat/completions", TRIAL
            remedy = "name a model that `paceline serve` answers from"
        request = HttpRequest(f"{self._base}{path}", data=asked, headers=self._headers())
        try:
            with self._opener.open(request, timeout=seconds) as response:
                body = read_body(response, until=time.monotonic() + seconds, limit=LARGEST_ANSWER)
        except HTTPError as error:
            with error:
                if self.service is not None:
                    said = str(self._of_status(error))
                    raise RewardError(f"--reward-funcs judge:{self.url} does not answer: {said}; {remedy}") from None
                if error.code not in KEY_STATUSES:
                    return ""  # a service without this list
                raise RewardError(f"--reward-funcs judge:{self.url} answers {error.code}; {remedy}") from None
        except (OSError, HTTPException) as error:
            raise RewardError(
                f"--reward-funcs judge:{self.url} does not answer: {short(self._redacted(str(error)))}; {remedy}"
            ) from None
        names = list[str]()
        with suppress(ValueError, TypeError, KeyError):
            names = [
                str(one["id"]) for one in json.loads(self._redacted((body or b"").decode("utf-8", "replace")))["data"]
            ]
        if not names or self.settings.model in names:
            return ""
        return f"it lists {short(', '.join(names))} and not {self.settings.model}"

    def ask(self, requests: Sequence[VerdictRequest], *, seconds: float) -> list[JudgeVerdict | JudgeFailure]:
        """The verdict of each request, or why there is none; in their order, whatever the order of the answers.

        Equal requests are asked once. What has not ended after `seconds` has failed.
        """
        if self.service is not None:
            self.service.start()
        keys = [self.key(one) for one in requests]
        batch = VerdictBatch(until=time.monotonic() + seconds)
        self._sort(dict(zip(keys, requests, strict=True)), batch)
        if batch.waiting:
            self._key()  # raises here rather than in a thread
        total = len(batch.found) + len(batch.waiting)
        self.spending.add(verdicts=total, cached=len(batch.found))
        try:
            for number in range(min(self.settings.concurrency, len(batch.waiting))):
                threading.Thread(target=self._work, args=(batch,), name=f"judge-{number}", daemon=True).start()
            with batch.changed:
                while len(batch.found) < total and (left := batch.until - time.monotonic()) > 0:
                    ACTIVITY.beat("judge", f"{len(batch.found)} of {total} verdicts")
                    batch.changed.wait(min(left, WAIT_SECONDS))
        finally:
            batch.ended.set()
        late = JudgeFailure("timeout", f"not asked and answered within the batch's {seconds:g} seconds")
        with batch.changed:
            answered = {key: batch.found.get(key, late) for key in keys}
        for one in answered.values():
            if isinstance(one, JudgeFailure):
                self.spending.add(**{f"failed_{one.kind}": 1})
        return [answered[key] for key in keys]

    def _sort(self, requests: Mapping[str, VerdictRequest], batch: VerdictBatch) -> None:
        """Find what is in the cache, and have the rest wait in its order."""
        for key, request in requests.items():
            answer = self.cache.find(key)
            with suppress(JudgeFailure):  # a file that somebody changed is asked for again
                if answer is not None:
                    batch.found[key] = request.read(answer)
            if key not in batch.found:
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
                    batch.found[key] = outcome
                    batch.changed.notify_all()

    def key(self, request: VerdictRequest) -> str:
        """Hash of all that decides a verdict: address and model, or the files of a model of the run's own, texts, and
        the number of the repetition."""
        one = self.settings
        model = (self.url, one.model) if self.service is None else ("own", *self.service.identity)
        asked = (VERSION, *model, one.temperature, one.answer_tokens, request.repeat)
        return blake2b(json.dumps([*asked, request.messages, request.schema]).encode(), digest_size=20).hexdigest()

    def _verdict(self, key: str, request: VerdictRequest, batch: VerdictBatch) -> JudgeVerdict | JudgeFailure:
        """Ask until there is a verdict, tries or time run out, or the failure will not pass."""
        attempt = 0
        while True:
            try:
                answer = self._answer(key, request, attempt, batch.until)
                verdict = request.read(answer)
            except JudgeFailure as error:
                pause = max(backoff(key, attempt), error.retry_after)
                has_ended = self.service is not None and self.service.why_ended
                is_last = has_ended or error.kind not in TRY_AGAIN or attempt >= self.settings.retries
                if is_last or time.monotonic() + pause >= batch.until or batch.ended.wait(pause):
                    tries = f", in {attempt + 1} tries" if attempt else ""
                    return JudgeFailure(error.kind, f"{error}{tries}")
            else:
                try:
                    self.cache.keep(key, answer)
                except OSError:
                    self.spending.add(unsaved=1)  # a full disk costs the cache, not the verdict
                return verdict
            attempt += 1
            self.spending.add(retries=1)

    def _answer(self, key: str, request: VerdictRequest, attempt: int, until: float) -> str:
        """The text of an answer, by the form of the request that the service takes."""
        one, messages = self.settings, request.messages
        body: dict[str, Any] = {
            "model": one.model,
            "messages": messages,
            "temperature": one.temperature,
            "seed": int(blake2b(f"{key} {attempt}".encode(), digest_size=4).hexdigest(), 16) >> 1,
            "max_tokens": one.answer_tokens,
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
                answer = self._post(sent, read + TEMPLATE_TOKENS + one.answer_tokens, until)
            except JudgeFailure as error:
                if error.status not in UNKNOWN_FIELD_STATUSES or form == forms[-1]:
                    raise
            else:
                self._form = form
                return answer
        raise AssertionError("unreachable: the last form returns or raises")

    def _post(self, body: Mapping[str, Any], most: int, until: float) -> str:
        """One call: what the model said; `most` tokens at most.

        A call whose answer does not come may have cost what it could; one that is refused by a status costs nothing.
        """
        seconds = self.settings.timeout
        if not self._places.acquire(timeout=max(0.0, until - time.monotonic())) or time.monotonic() >= until:
            raise JudgeFailure("timeout", "the batch's deadline has passed")
        try:
            return self._send(body, most, seconds)
        finally:
            self._places.release()

    def _send(self, body: Mapping[str, Any], most: int, seconds: float) -> str:
        if self.service is not None and (why := self.service.why_ended):
            raise JudgeFailure("connection", why)
        headers, data = self._headers(), json.dumps(body).encode()
        self.spending.take(most)
        spent, started, ends = most, time.perf_counter(), time.monotonic() + seconds
        try:
            request = HttpRequest(f"{self._base}/chat/completions", data=data, headers=headers, method="POST")
            with self._opener.open(request, timeout=seconds) as response:
                received = read_body(response, until=ends, limit=LARGEST_ANSWER)
            if received is None:
                raise JudgeFailure("malformed", f"an answer of more than {LARGEST_ANSWER} bytes")
            # Whatever a service sends back of the key ends here.
            answer, read, written = _said(self._redacted(received.decode("utf-8", "replace")), self.settings, most)
            spent = read + written if read or written else most
            answer = self._redacted(answer) if isinstance(answer, str) else answer
            self.spending.add(answered=1, latency_sum=time.perf_counter() - started)
            self.spending.add(tokens_read=read, tokens_written=written)
        except HTTPError as error:
            spent = 0
            with error:
                raise self._of_status(error) from None
        except URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise JudgeFailure("timeout", f"no connection within {seconds:.3g} seconds") from None
            spent = 0
            raise JudgeFailure("connection", short(self._redacted(str(error.reason)))) from None
        except TimeoutError:
            raise JudgeFailure("timeout", f"no answer within {seconds:.3g} seconds") from None
        except (OSError, HTTPException) as error:
            raise JudgeFailure("connection", short(self._redacted(f"{type(error).__name__}: {error}"))) from None
        finally:
            self.spending.settle(most, spent)
        if isinstance(answer, JudgeFailure):
            raise answer
        return answer

    def _of_status(self, error: HTTPError) -> JudgeFailure:
        kind = "server" if error.code >= 500 or error.code in PASSING_STATUSES else "rejected"
        said = ""
        if error.code not in KEY_STATUSES:
            with suppress(OSError, HTTPException):
                said = short(self._redacted(error.read(2000).decode("utf-8", "replace")))
        after = retry_after(error.headers.get("Retry-After", ""), time.time())
        asks = f", which asks to wait {after:g} seconds" if after else ""
        return JudgeFailure(
            kind, f"status {error.code}{said and f': {said}'}{asks}", status=error.code, retry_after=after
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


def _said(received: str, settings: JudgeSettings, most: int) -> tuple[str | JudgeFailure, int, int]:
    """What the model said in an answer of the interface, or why that is no verdict; tokens read and written.

    Numbers that a call of `most` tokens cannot have had are not believed, and both are 0.
    """
    try:
        answer = json.loads(received)
        choice = answer["choices"][0]
        content, refusal, reason = (
            choice["message"].get("content"),
            choice["message"].get("refusal"),
            choice.get("finish_reason"),
        )
        usage = answer.get("usage") or {}
        read, written = (usage.get(f"{name}_tokens") for name in ("prompt", "completion"))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return JudgeFailure("malformed", f"no answer of the chat interface: {short(received)}"), 0, 0
    if not (type(read) is type(written) is int and min(read, written) >= 0 and read + written <= most):
        read = written = 0
    said: str | JudgeFailure
    if refusal or reason == "content_filter":
        said = JudgeFailure("refused", f"the judge refused: {short(str(refusal or reason))}")
    elif reason == "length":
        said = JudgeFailure("malformed", f"the answer was cut at {settings.answer_tokens} tokens; raise answer_tokens")
    elif not isinstance(content, str):
        said = JudgeFailure("malformed", "an answer without text")
    else:
        said = content
    return said, read, written
