"""Requests under way for one engine: they wait in the order of arrival, share its batch, and hear of each token.

Handing on what the engine samples has a thread of its own: one for all requests, as waking a thread for each token of
each takes more than a small model does. Neither it nor the engine waits for a client.
"""

import math
import queue
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from http import HTTPStatus

from typing_extensions import override

from paceline.engines import Request, RequestStream, Sampled, Sampling, TrainedEngine
from paceline.errors import DataError, EngineError, PacelineError, first_line
from paceline.openai_api.requests import Refusal

MOST_WAITING = 1024
"""Requests that wait for a place in the batch, at most."""
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
FAULTY = Refusal("the answer could not be written; see the server's terminal", status=HTTPStatus.INTERNAL_SERVER_ERROR)


class Generation:
    """One request under way: the engine's thread tells it tokens, another one hands them on."""

    def __init__(
        self,
        request: Request,
        sampling: Sampling,
        *,
        at_once: bool,
        hear: Callable[[Sequence[Sampled] | Refusal], None],
    ) -> None:
        """`hear` is told what is sampled, or why there will be no more, in the thread that hands on.

        `at_once`: it hears of each token; else only once all completions have ended.
        """
        self.request, self.sampling = request, sampling
        self.is_given_up = False
        """True if nobody wants any more of it."""
        self._at_once, self._hear = at_once, hear
        self._untold = deque[Sampled]()
        self._refusal: Refusal | None = None
        self._sampled, self._unwanted = set(range(len(request.keys))), set[int]()
        """Completions that the engine samples, and those that are wanted no more."""

    @property
    def is_over(self) -> bool:
        """True if the engine samples nothing of it any more."""
        return not self._sampled

    @property
    def has_news(self) -> bool:
        """True if there is something to hand on by now."""
        return self._at_once or self.is_over

    def tell(self, one: Sampled) -> bool:
        """Note what was sampled; returns True for a completion that is to end at once. Called by the engine."""
        if not all(map(math.isfinite, one.logprobs)):
            self.fail(NOT_FINITE)
        is_unwanted = self.is_given_up or one.sample in self._unwanted
        if is_unwanted or one.finish_reason is not None:
            self._sampled.discard(one.sample)
        if self._refusal is None:
            self._untold.append(one)
        return is_unwanted

    def hand_on(self) -> None:
        """Let what is new be heard: all that came since the last time, in one."""
        news = list[Sampled]()
        while self._untold:
            news.append(self._untold.popleft())
        try:
            if news:
                self._hear(news)
            if self._refusal is not None:
                self._hear(self._refusal)
        except Exception as error:  # noqa: BLE001 - a fault in the writing of one answer may not end those of others
            traceback.print_exception(error)
            self.give_up()
            self._hear(FAULTY)

    def fail(self, refusal: Refusal) -> None:
        """Let this be heard next; the engine ends what it samples."""
        self._refusal = refusal
        self.give_up()

    def end(self, sample: int) -> None:
        """Want no more of one completion."""
        self._unwanted.add(sample)

    def give_up(self) -> None:
        """Want no more of any."""
        self.is_given_up = True


class Generations(RequestStream):
    """The stream of an engine: it is given as many completions as it computes at once, others wait their turn."""

    def __init__(self, capacity: int) -> None:
        """`capacity`: completions that the engine computes at once."""
        self.tokens_read = self.tokens_sampled = 0
        """Tokens of prompts that the engine was given, and tokens that it has sampled."""
        self.failure: PacelineError | None = None
        """What the engine failed with."""
        self.ended = threading.Event()
        """Set once the engine samples no more."""
        self._capacity, self._rows, self._count = capacity, 0, 0
        self._waiting, self._running = deque[Generation](), dict[int, Generation]()
        """Requests that the engine was not given yet, and the others by its own number."""
        self._arrived = threading.Condition()
        self._news = queue.SimpleQueue[Sequence[Generation] | None]()
        """Requests with something to hand on, after each step; None: the end."""
        self._last: Refusal | None = None
        """What further requests are refused with; None: they are taken."""

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a place in the batch."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Number of requests that the engine samples for."""
        return len(self._running)

    def run(self, engine: TrainedEngine, *, length: int) -> None:
        """Let the engine sample until `close`, or until it fails."""
        handing_on = threading.Thread(target=self._hand_on, name="answers", daemon=True)
        handing_on.start()
        try:
            self._stream(engine, length)
        except PacelineError as error:
            self.failure = error
        finally:
            failed = HTTPStatus.INTERNAL_SERVER_ERROR
            self.break_off(self._last or Refusal("the engine has failed; see the server's terminal", status=failed))
            self._news.put(None)
            try:
                handing_on.join()
            finally:  # also at an interrupt
                self.ended.set()

    def _stream(self, engine: TrainedEngine, length: int) -> None:
        """Let the engine sample; a fault that it did not foresee ends the requests at hand, and it begins anew.

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
            self._news.put(broken)

    def _hand_on(self) -> None:
        while (told := self._news.get()) is not None:
            for generation in told:
                generation.hand_on()

    def add(self, generation: Generation) -> None:
        """Let a request wait for its place; raises Refusal where none is taken any more."""
        with self._arrived:
            if self._last is not None:
                raise self._last
            if len(self._waiting) >= MOST_WAITING:
                said = f"{MOST_WAITING} requests wait already, which is the most; ask again later"
                raise Refusal(said, code="too_many_requests", status=HTTPStatus.SERVICE_UNAVAILABLE)
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
        self._news.put(broken)
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
        unwanted, told = list[bool](), dict[int, Generation]()
        for one in sampled:
            generation = self._running[one.request]
            self.tokens_sampled += len(one.token_ids)
            unwanted.append(generation.tell(one))
            if generation.has_news:
                told[one.request] = generation
            if unwanted[-1] or one.finish_reason is not None:
                with self._arrived:
                    self._rows -= 1
                    if generation.is_over:
                        del self._running[one.request]
        if told:
            self._news.put([*told.values()])
        return unwanted
