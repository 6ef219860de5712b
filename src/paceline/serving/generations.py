"""Requests under way for one engine: they wait in the order of arrival, share its batch, and get each token.

One thread sends what the engine samples to all requests: waking a thread for each token of each request takes more
than a small model does. Neither it nor the engine waits for a client.
"""

import math
import queue
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from http import HTTPStatus

from typing_extensions import override

from paceline.data.pictures import Picture
from paceline.engines import Request, RequestStream, Sampled, Sampling, TrainedEngine
from paceline.errors import DataError, EngineError, PacelineError, first_line
from paceline.openai_api.requests import Refusal

MOST_WAITING = 1024
"""Requests that wait for room in the batch, at most."""
MOST_FAILURES = 3
"""Faults of the engine in a row, without a token in between, after which it is not begun anew."""
FAILED = Refusal(
    "the engine has failed on the requests at hand; see the server's terminal, and ask again",
    status=HTTPStatus.INTERNAL_SERVER_ERROR,
)
NOT_FINITE = Refusal(
    "the model's logits are not finite numbers for this request; ask otherwise, or serve another model",
    status=HTTPStatus.INTERNAL_SERVER_ERROR,
)
FAULTY = Refusal(
    "the response could not be written; see the server's terminal", status=HTTPStatus.INTERNAL_SERVER_ERROR
)


class Generation:
    """One request under way: the engine's thread adds tokens, another thread sends them on."""

    def __init__(
        self,
        request: Request,
        sampling: Sampling,
        *,
        at_once: bool,
        on_sampled: Callable[[Sequence[Sampled] | Refusal], None],
        pictures: tuple[Picture, ...] = (),
    ) -> None:
        """`on_sampled` gets what is sampled, or why there will be no more, in the thread that sends.

        `at_once`: it is called for each token; else only once all completions have ended.
        """
        self.request, self.sampling, self.pictures = request, sampling, pictures
        self.is_given_up = False
        """True if nobody wants any more of it."""
        self._at_once, self._on_sampled = at_once, on_sampled
        self._unsent = deque[Sampled]()
        self._refusal: Refusal | None = None
        self._sampled, self._unwanted = set(range(len(request.keys))), set[int]()
        """Completions that the engine samples, and those that are wanted no more."""

    @property
    def is_over(self) -> bool:
        """True if the engine samples nothing of it any more."""
        return not self._sampled

    @property
    def is_to_be_sent(self) -> bool:
        """True if there is something to send by now."""
        return self._at_once or self.is_over

    def add(self, sampled: Sampled) -> bool:
        """Note what the engine sampled; returns True for a completion that is to end at once."""
        if not all(map(math.isfinite, sampled.logprobs)):
            self.fail(NOT_FINITE)
        is_unwanted = self.is_given_up or sampled.sample in self._unwanted
        if is_unwanted or sampled.finish_reason is not None:
            self._sampled.discard(sampled.sample)
        if self._refusal is None:
            self._unsent.append(sampled)
        return is_unwanted

    def send(self) -> None:
        """Deliver the tokens sampled since the last call."""
        sampled = list[Sampled]()
        while self._unsent:
            sampled.append(self._unsent.popleft())
        try:
            if sampled:
                self._on_sampled(sampled)
            if self._refusal is not None:
                self._on_sampled(self._refusal)
        except Exception as error:  # noqa: BLE001 - a fault in the writing of one response may not end those of others
            traceback.print_exception(error)
            self.give_up()
            self._on_sampled(FAULTY)

    def fail(self, refusal: Refusal) -> None:
        """Cancel all completions, and deliver this next."""
        self._refusal = refusal
        self.give_up()

    def end(self, sample: int) -> None:
        """Cancel one completion."""
        self._unwanted.add(sample)

    def give_up(self) -> None:
        """Cancel all completions."""
        self.is_given_up = True


class Generations(RequestStream):
    """Requests of an engine: it gets as many completions as it computes at once, and others wait their turn."""

    def __init__(self, capacity: int) -> None:
        """`capacity`: completions that the engine computes at once."""
        self.tokens_read = self.tokens_sampled = 0
        """Tokens of prompts that the engine was given, and tokens that it has sampled."""
        self.failure: PacelineError | None = None
        """Error that ended the engine; None: there is none."""
        self.ended = threading.Event()
        """Set once the engine samples no more."""
        self._capacity, self._rows, self._count = capacity, 0, 0
        self._waiting, self._running = deque[Generation](), dict[int, Generation]()
        """Requests that the engine has not taken yet, and those that it samples by its number of them."""
        self._arrived = threading.Condition()
        self._to_send = queue.SimpleQueue[Sequence[Generation] | None]()
        """Requests with something to send, after each step; None: the end."""
        self._last: Refusal | None = None
        """Refusal of further requests; None: they are taken."""

    @property
    def waiting(self) -> int:
        """Number of requests that wait for room in the batch."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Number of requests that the engine samples for."""
        return len(self._running)

    def run(self, engine: TrainedEngine, *, length: int) -> None:
        """Let the engine sample until `close`, or until it fails."""
        sender = threading.Thread(target=self._send, name="responses", daemon=True)
        sender.start()
        try:
            self._stream(engine, length)
        except PacelineError as error:
            self.failure = error
        finally:
            failed = HTTPStatus.INTERNAL_SERVER_ERROR
            self.break_off(self._last or Refusal("the engine has failed; see the server's terminal", status=failed))
            self._to_send.put(None)
            try:
                sender.join()
            finally:  # also at an interrupt
                self.ended.set()

    def _stream(self, engine: TrainedEngine, length: int) -> None:
        """Let the engine sample; an unexpected fault ends the requests at hand, and it begins anew.

        Raises:
            PacelineError: it cannot go on, or has failed several times without a token in between.
        """
        failures, sampled = 0, 0
        while True:
            try:
                engine.stream(self, length=length)
            except PacelineError as error:
                if not isinstance(error, DataError):
                    raise
                fault: Exception = error
            except Exception as error:  # noqa: BLE001 - the border: what one batch of requests meets is not the end
                fault = error
            else:
                return
            traceback.print_exception(fault)
            failures = 1 if self.tokens_sampled > sampled else failures + 1
            if failures == MOST_FAILURES:
                raise EngineError(f"the engine failed {failures} times in a row ({first_line(fault)})") from fault
            sampled = self.tokens_sampled
            with self._arrived:
                broken = [*self._running.values()]
                self._running.clear()
                self._rows = self._count = 0
            for generation in broken:
                generation.fail(FAILED)
            self._to_send.put(broken)

    def _send(self) -> None:
        while (generations := self._to_send.get()) is not None:
            for generation in generations:
                generation.send()

    def add(self, generation: Generation) -> None:
        """Let a request wait for its turn; raises Refusal where none is taken any more."""
        with self._arrived:
            if self._last is not None:
                raise self._last
            if len(self._waiting) >= MOST_WAITING:
                problem = f"{MOST_WAITING} requests wait already, which is the most; ask again later"
                raise Refusal(problem, code="too_many_requests", status=HTTPStatus.SERVICE_UNAVAILABLE)
            self._waiting.append(generation)
            self._arrived.notify()

    def close(self, refusal: Refusal) -> None:
        """Refuse further requests with this; the engine ends once those that are here have ended."""
        with self._arrived:
            self._last = self._last or refusal
            self._arrived.notify()

    def break_off(self, refusal: Refusal) -> int:
        """Refuse further requests, and let those that are here end with this; returns their number."""
        self.close(refusal)
        with self._arrived:
            broken = [*self._waiting, *self._running.values()]
            self._waiting.clear()
        for generation in broken:
            generation.fail(refusal)
        self._to_send.put(broken)
        return len(broken)

    @override
    def take(self, *, wait: bool) -> Sequence[tuple[Request, Sampling]] | None:
        taken = list[tuple[Request, Sampling]]()
        with self._arrived:
            if wait:
                self._arrived.wait_for(lambda: self._waiting or self._last is not None)
            while self._waiting:
                first = self._waiting[0]
                wanted = len(first.request.keys)
                if self._rows and self._rows + wanted > self._capacity and not first.is_given_up:
                    break
                self._waiting.popleft()
                if first.is_given_up:
                    continue
                self._running[self._count] = first
                self._count, self._rows = self._count + 1, self._rows + wanted
                self.tokens_read += len(first.request.prompt_ids)
                taken.append((first.request, first.sampling))
            return None if self._last is not None and not taken and not self._waiting else taken

    @override
    def tell(self, sampled: Sequence[Sampled]) -> Sequence[bool]:
        unwanted, to_send = list[bool](), dict[int, Generation]()
        for tokens in sampled:
            generation = self._running[tokens.request]
            self.tokens_sampled += len(tokens.token_ids)
            unwanted.append(generation.add(tokens))
            if generation.is_to_be_sent:
                to_send[tokens.request] = generation
            if unwanted[-1] or tokens.finish_reason is not None:
                with self._arrived:
                    self._rows -= 1
                    if generation.is_over:
                        del self._running[tokens.request]
        if to_send:
            self._to_send.put([*to_send.values()])
        return unwanted
