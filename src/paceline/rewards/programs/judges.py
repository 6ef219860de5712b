"""Programs judged in the background: as many at a time as the sandbox has slots, and each once for the same tests."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, wait
from hashlib import blake2b
from queue import SimpleQueue

from paceline.errors import SandboxError
from paceline.programs import Limits, Sandbox
from paceline.rewards.programs.cases import Cases
from paceline.rewards.programs.judging import Judgement, judge

KEPT = 4096
"""Judgements remembered: those of a step's completions, and of later ones that are the same."""
START_SECONDS = 60.0
"""What verdicts may take beyond the programs' own time, the opening of the sandbox included."""
TRIES = 2
"""How often a sandbox runs a program before it gives up: each may take the program's whole time."""
SLICE_SECONDS = 0.2
"""A wait is cut into these, so that a limit on the whole call can end it between two."""


class Judges:
    """Threads that judge. They are daemons: a verdict that nobody waits for must not keep the process alive."""

    def __init__(self, open_sandbox: Callable[[], Sandbox], *, limits: Limits, stop_at_first: bool) -> None:
        self._open_sandbox = open_sandbox
        self._limits = limits
        self._stop_at_first = stop_at_first
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, Future[Judgement]] = OrderedDict()
        self._queue: SimpleQueue[tuple[Future[Judgement], str, Cases]] = SimpleQueue()
        self._sandbox: Sandbox | SandboxError | None = None
        self._threads = 0
        self._waiting_tests = 0

    def start(self, source: str, cases: Cases) -> Future[Judgement]:
        """Have a program judged; returns at once, with the same future for the same program and tests.

        What the sandbox failed on is judged anew, since nothing is known of it.
        """
        key = _fingerprint(source, cases)
        with self._lock:
            known = self._known.get(key)
            if known is not None and not (known.done() and known.exception() is not None):
                self._known.move_to_end(key)
                return known
            self._known[key] = future = Future[Judgement]()
            if len(self._known) > KEPT:
                self._known.popitem(last=False)
            self._waiting_tests += len(cases.inputs)
            self._queue.put((future, source, cases))
            if self._threads == 0:
                self._add_thread()
        return future

    def deadline(self) -> float:
        """By when, in the time of `time.monotonic`, everything that was started has a verdict at the latest."""
        with self._lock:
            slots = 1 if self._sandbox is None or isinstance(self._sandbox, SandboxError) else self._sandbox.slots
            tests = self._waiting_tests
        per_test = TRIES * self._limits.wall_seconds
        return time.monotonic() + START_SECONDS + per_test * -(-tests // slots)

    def result(self, future: Future[Judgement], *, until: float) -> Judgement | SandboxError:
        """The verdict; or why there is none: the sandbox failed, or `until` (see `deadline`) passed."""
        while not future.done() and (left := until - time.monotonic()) > 0:
            wait([future], timeout=min(SLICE_SECONDS, left))
        if not future.done():
            return SandboxError("the sandbox gave no verdict on a program in the time that all of its tests may take")
        failure = future.exception()
        if failure is not None and not isinstance(failure, SandboxError):
            raise failure
        return future.result() if failure is None else failure

    def _add_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name=f"judge-{self._threads}", daemon=True).start()

    def _work(self) -> None:
        while True:
            future, source, cases = self._queue.get()
            try:
                sandbox = self._opened()
                judgement = judge(sandbox, source, cases, limits=self._limits, stop_at_first=self._stop_at_first)
            except BaseException as error:  # noqa: BLE001 - a thread has no caller: the error is for who waits
                future.set_exception(error)
            else:
                future.set_result(judgement)
            with self._lock:
                self._waiting_tests -= len(cases.inputs)

    def _opened(self) -> Sandbox:
        """The sandbox. There is one thread until it is open, and then one per slot."""
        if self._sandbox is None:
            try:
                sandbox = self._open_sandbox()
            except SandboxError as error:
                self._sandbox = error
                raise
            with self._lock:
                self._sandbox = sandbox
                while self._threads < sandbox.slots:
                    self._add_thread()
        if isinstance(self._sandbox, SandboxError):
            raise SandboxError(str(self._sandbox))
        return self._sandbox


def _fingerprint(source: str, cases: Cases) -> bytes:
    """Stands for a program and its tests, so that remembering a verdict does not keep megabytes of tests."""
    digest = blake2b(digest_size=16)
    for text in (source, cases.function or "", str(cases.in_list), *cases.inputs, *cases.outputs):
        part = text.encode("utf-8", "surrogatepass")
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()
