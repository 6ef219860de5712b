"""Programs judged in the background: each once for the same tests, and within a bound on what a batch may cost.

Every program gets its first slice (`Trial`), in the order in which programs arrive. Slow ones go on when the batch that
is graded has had all of its first slices, in the batch's order. The processor time of tests that they pass is free.
That of tests which they fail is added up, and the first program before which the sum has reached the batch's allowance
is cut short, with all slow ones behind it. Sums count in the batch's order and in processor time: which programs are
cut short hangs neither on the load of the machine nor on how many run at a time.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from hashlib import blake2b
from itertools import count
from queue import PriorityQueue

from paceline.errors import SandboxError
from paceline.rewards.programs.cases import Cases
from paceline.rewards.programs.judging import Judgement, Trial
from paceline.sandbox.programs import Limits, Sandbox

KEPT = 4096  # Programs remembered: those of a step's completions, and of later ones that are the same
LEAST_ALLOWANCE, PROGRAMS_PER_LIMIT = 4, 64
"""The allowance of a batch, in limits of one test: at least so many, and one for so many programs."""
START_SECONDS = 60.0  # What verdicts may take beyond the programs' own time, the opening of the sandbox included
TRIES = 2  # How often a sandbox runs a program before it gives up: each may take the program's whole time
SLICE_SECONDS = 0.2  # A wait is cut into these, so that a limit on the whole call can end it between two
FIRST, REST = 0, 1  # Priorities: first programs are judged before the rest of the queue

Work = Callable[[Sandbox, Callable[[], None]], None]
"""What a thread does; the second argument is called once it holds no processor any more."""


class Program:
    """A program that is being judged for some tests."""

    def __init__(self, key: bytes, trial: Trial, first: Future[None]) -> None:
        self.key, self.trial, self.first = key, trial, first
        self.rest: Future[None] | None = None

    @property
    def is_broken(self) -> bool:
        """True if the sandbox has failed on it, so that nothing is known of it."""
        return any(one is not None and one.done() and one.exception() is not None for one in (self.first, self.rest))


class Judges:
    """Threads that judge. They are daemons: a verdict that nobody waits for must not keep the process alive."""

    def __init__(self, open_sandbox: Callable[[], Sandbox], *, limits: Limits, stop_at_first: bool) -> None:
        self._open_sandbox = open_sandbox
        self._limits = limits
        self._stop_at_first = stop_at_first
        self._lock = threading.RLock()
        self._known: OrderedDict[bytes, Program] = OrderedDict()
        self._queue: PriorityQueue[tuple[int, int, Future[None], Work]] = PriorityQueue()
        self._numbers = count()
        self._sandbox: Sandbox | SandboxError | None = None
        self._threads = 0
        self._seats = threading.Semaphore(1)

    def start(self, source: str, cases: Cases) -> Program:
        """Have a program's first slice run; returns at once, with the same object for the same program and tests.

        What the sandbox failed on is judged anew, since nothing is known of it.
        """
        # A fingerprint of the program and its tests: remembering a verdict must not keep megabytes of tests.
        digest = blake2b(digest_size=16)
        for text in (source, cases.function or "", str(cases.in_list), *cases.inputs, *cases.outputs):
            part = text.encode("utf-8", "surrogatepass")
            digest.update(len(part).to_bytes(8, "big") + part)
        key = digest.digest()
        with self._lock:
            known = self._known.get(key)
            if known is not None and not known.is_broken:
                self._known.move_to_end(key)
                return known
            trial = Trial(source, cases, limits=self._limits, stop_at_first=self._stop_at_first)
            self._known[key] = program = Program(key, trial, self._put(FIRST, trial.run_first))
            if len(self._known) > KEPT:
                self._known.popitem(last=False)
        return program

    def results(self, batch: Sequence[Program]) -> list[Judgement | SandboxError]:
        """The verdicts on the programs of a batch, in its order; an error where the sandbox failed or was too slow."""
        programs = list(dict.fromkeys(batch))
        failures = dict[Program, SandboxError]()
        until = self._deadline(sum(program.trial.tests_left for program in programs))
        for program in programs:
            self._wait(program, program.first, until, failures)
        slow = [program for program in programs if program not in failures and program.trial.is_slow]
        allowance = self._limits.seconds * max(LEAST_ALLOWANCE, len(batch) / PROGRAMS_PER_LIMIT)

        def may_go_on(place: int) -> bool:
            return sum(one.trial.lost_seconds for one in slow[:place]) < allowance

        for place, program in enumerate(slow):
            if program.rest is None or program.rest.done():
                program.rest = self._put(REST, partial(program.trial.run_rest, may_go_on=partial(may_go_on, place)))
        until = self._deadline(sum(program.trial.tests_left for program in slow))
        for program in slow:
            assert program.rest is not None
            self._wait(program, program.rest, until, failures)
        cut = {program for place, program in enumerate(slow) if not may_go_on(place)}
        known = {one: one.trial.judgement(cut_short=one in cut) for one in programs if one not in failures}
        with self._lock:
            for program in cut:  # what is not known of it must not be remembered, nor its tests be kept
                if self._known.get(program.key) is program:
                    del self._known[program.key]
        return [failures[program] if program in failures else known[program] for program in batch]

    def _put(self, order: int, work: Work) -> Future[None]:
        future = Future[None]()
        self._queue.put((order, next(self._numbers), future, work))
        with self._lock:
            if self._threads == 0:
                self._add_thread()
        return future

    def _deadline(self, tests: int) -> float:
        """By when, in the time of `time.monotonic`, so many tests have a verdict at the latest."""
        slots = 1 if self._sandbox is None or isinstance(self._sandbox, SandboxError) else self._sandbox.slots
        return time.monotonic() + START_SECONDS + TRIES * self._limits.wall_seconds * -(-tests // slots)

    def _wait(self, program: Program, work: Future[None], until: float, failures: dict[Program, SandboxError]) -> None:
        while not work.done() and (left := until - time.monotonic()) > 0:
            wait([work], timeout=min(SLICE_SECONDS, left))
        if not work.done():
            late = "the sandbox gave no verdict on a program in the time that all of its tests may take"
            failures[program] = SandboxError(late)
            return
        failure = work.exception()
        if isinstance(failure, SandboxError):
            failures[program] = failure
        elif failure is not None:
            raise failure

    def _add_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name=f"judge-{self._threads}", daemon=True).start()

    def _work(self) -> None:
        while True:
            self._seats.acquire()
            leave = _once(self._seats.release)
            _, _, future, work = self._queue.get()
            try:
                work(self._opened(), leave)
            except BaseException as error:  # noqa: BLE001 - a thread has no caller: the error is for who waits
                future.set_exception(error)
            else:
                future.set_result(None)
            leave()

    def _opened(self) -> Sandbox:
        """The sandbox. There is one thread until it is open, and then as many as it has use for."""
        if self._sandbox is None:
            try:
                sandbox = self._open_sandbox()
            except SandboxError as error:
                self._sandbox = error
                raise
            with self._lock:
                self._sandbox = sandbox
                for _ in range(sandbox.slots - 1):
                    self._seats.release()
                while self._threads < sandbox.callers:
                    self._add_thread()
        if isinstance(self._sandbox, SandboxError):
            raise SandboxError(str(self._sandbox))
        return self._sandbox


def _once(action: Callable[[], None]) -> Callable[[], None]:
    """The action, which further calls do not repeat."""
    left = [action]
    return lambda: left.pop()() if left else None
