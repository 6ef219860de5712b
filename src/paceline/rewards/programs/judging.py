"""Judges programs: a verdict for each test case.

A test is one job of the sandbox, which knows its input alone. The expected output is compared here, where no program
can reach it. Programs are judged in the background: each once for the same tests, within a bound on what a batch costs.

Every program gets a first slice of processor time, in the order in which programs arrive; most come to an end in it.
One that needs more is slow, and goes on when the batch that is graded has had all of its first slices, in the batch's
order. The processor time of tests that slow ones pass is free. That of tests which they fail is added up, and the first
program before which the sum has reached the batch's allowance is cut short, with all slow ones behind it. Sums count in
the batch's order and in processor time: which programs are cut short depends neither on the load of the machine nor on
how many run at a time.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import count
from queue import PriorityQueue
from typing import Literal

from paceline.errors import SandboxError
from paceline.rewards.programs.cases import Cases, parse_value, same_output, same_value
from paceline.sandbox.programs import Execution, ExecutionStatus, Job, Limits, Sandbox

ProgramVerdict = Literal[
    "pass",
    "wrong",
    "runtime_error",
    "syntax_error",
    "no_function",
    "timeout",
    "memory",
    "output_limit",
    "not_run",
    "cut_short",
]
"""`not_run`: left out after others that failed; `cut_short`: left out as the batch had used up its time."""

SAME_FOR_EVERY_INPUT: tuple[ExecutionStatus, ...] = ("syntax_error", "no_function")
MAX_TIMEOUTS = 2  # Tests that one program may spend its whole time on; what it has not run by then, it has not passed
FIRST_SECONDS = 0.25  # Processor time of a test, and of all tests that a program fails, after which the program is slow
OUT_OF_TIME = f"it needs more than {FIRST_SECONDS:g} s, and the batch had used up its time for slow programs"
ERROR_LENGTH = 160  # Characters of a program's own message in a note
KEPT = 4096  # Programs remembered: those of a step's completions, and of later ones that are the same
LEAST_ALLOWANCE, PROGRAMS_PER_LIMIT = 4, 64
"""The allowance of a batch, in limits of one test: at least so many, and one for so many programs."""
START_SECONDS = 60.0  # What verdicts may take beyond the programs' own time, the opening of the sandbox included
TRIES = 2  # How often a sandbox runs a program before it gives up: each may take the program's whole time
SLICE_SECONDS = 0.2  # A wait is cut into these, so that a limit on the whole call can end it between two
FIRST, REST = 0, 1  # Priorities: first programs are judged before the rest of the queue

Work = Callable[[Sandbox, Callable[[], None]], None]
"""Work of a thread; it calls its second argument when it no longer holds a processor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """Verdicts on a program."""

    verdicts: tuple[ProgramVerdict, ...]
    """Verdict of each test, in order; at least one."""
    error: str = ""
    """The first failing program's last words, for a person."""

    @property
    def passed(self) -> int:
        """Tests that it passed."""
        return self.verdicts.count("pass")

    @property
    def note(self) -> str:
        """Summary in one line, such as `passed 2 of 5 tests; test 3: timeout`."""
        head = f"passed {self.passed} of {len(self.verdicts)} tests"
        if self.passed == len(self.verdicts):
            return head
        number, verdict = next(pair for pair in enumerate(self.verdicts, start=1) if pair[1] != "pass")
        return f"{head}; test {number}: {verdict}{f' ({self.error})' if self.error else ''}"


class Trial:
    """Progress of a program through its tests, which may pause between two of them. Not thread-safe.

    Tests are left out (`not_run`) after the first that fails where `stop_at_first`, after a failure that every input
    would meet (no valid program, no such function), and after the second timeout.
    """

    def __init__(self, source: str, cases: Cases, *, limits: Limits, stop_at_first: bool) -> None:
        """`limits` are of each test; the limit of output is raised for larger expected outputs."""
        self._source, self._function, self._in_list = source, cases.function, cases.in_list
        self._stop_at_first = stop_at_first
        self._tests = list(zip(cases.inputs, cases.outputs, strict=True))
        self._number = len(self._tests)
        self._limits = replace(limits, output_bytes=output_limit(cases, limits.output_bytes))
        self._verdicts: list[ProgramVerdict] = []
        self._error = ""
        self._first_lost = 0.0
        self._before: int | None = None
        self.lost_seconds = 0.0
        """Processor time of tests that it did not pass, beyond the first slice; a timeout counts as a whole limit,
        also where the program slept."""

        self.first: Future[None] = Future()
        """Done once the first slice has run."""
        self.rest: Future[None] | None = None
        """Done once the other tests of a slow program have run."""

    @property
    def is_broken(self) -> bool:
        """True if the sandbox failed on it, so that there is no verdict."""
        return any(
            future is not None and future.done() and future.exception() is not None
            for future in (self.first, self.rest)
        )

    @property
    def is_slow(self) -> bool:
        """True if the first slice was not enough."""
        return self._before is not None

    @property
    def tests_left(self) -> int:
        """Tests that may still have to be run."""
        return len(self._tests)

    def run_first(self, sandbox: Sandbox, on_sleep: Callable[[], None]) -> None:
        """Run its tests until all is known, or the program turns out to be slow; SandboxError: nothing is known."""
        limits = replace(self._limits, seconds=min(FIRST_SECONDS, self._limits.seconds))
        while self._tests:
            execution = self._execute(sandbox, limits, on_sleep)
            if execution.status == "timeout" and limits != self._limits:
                self._before = len(self._verdicts)
                return
            if self._note(execution) != "pass":
                self._first_lost += execution.seconds
                if self._first_lost > FIRST_SECONDS and self._tests:
                    self._before = len(self._verdicts)
                    return

    def run_rest(self, sandbox: Sandbox, on_sleep: Callable[[], None], *, may_go_on: Callable[[], bool]) -> None:
        """Run the tests left of a slow program, within its whole limits, while it `may_go_on`; raises SandboxError."""
        while self._tests and may_go_on():
            execution = self._execute(sandbox, self._limits, on_sleep)
            if self._note(execution) != "pass":
                is_over = execution.status == "timeout"
                self.lost_seconds += self._limits.seconds if is_over else execution.seconds

    def judgement(self, *, cut_short: bool) -> Judgement:
        """Return the verdicts; `cut_short`: of the first slice only."""
        kept = self._verdicts[: self._before] if cut_short else self._verdicts
        left: ProgramVerdict = "cut_short" if cut_short else "not_run"
        verdicts = (*kept, *[left] * (self._number - len(kept)))
        return Judgement(verdicts=verdicts, error=OUT_OF_TIME if cut_short else self._error)

    def _execute(self, sandbox: Sandbox, limits: Limits, on_sleep: Callable[[], None]) -> Execution:
        text, _ = self._tests[0]
        stdin, arguments = (text, "[]") if self._function is None else ("", text)
        job = Job(source=self._source, stdin=stdin, function=self._function, arguments=arguments, limits=limits)
        return sandbox.execute(job, on_sleep)

    def _note(self, execution: Execution) -> ProgramVerdict:
        """Record the verdict on the next test and drop that test, and all others if no more is needed."""
        _, expected = self._tests.pop(0)
        verdict = self._verdict(execution, expected)
        if verdict not in ("pass", "wrong") and not self._error and set(self._verdicts) <= {"pass"}:
            self._error = _last_line(execution.error)
        self._verdicts.append(verdict)
        is_told = verdict in SAME_FOR_EVERY_INPUT or self._verdicts.count("timeout") >= MAX_TIMEOUTS
        if verdict != "pass" and (self._stop_at_first or is_told):
            self._tests.clear()
        return verdict

    def _verdict(self, execution: Execution, expected: str) -> ProgramVerdict:
        if execution.status != "finished":
            return execution.status
        if self._function is None:
            return "pass" if same_output(expected, execution.output) else "wrong"
        is_readable, wanted = parse_value(expected)
        is_plain, value = parse_value(execution.output)
        if not is_readable or not is_plain:
            return "wrong"
        is_listed = self._in_list and isinstance(wanted, list) and same_value(wanted[0], value)
        return "pass" if is_listed or same_value(wanted, value) else "wrong"


def output_limit(cases: Cases, least: int) -> int:
    """Return the limit of output in bytes: twice the largest expected output, at least `least`.

    A program can ask for its limits, so beyond `least` this is rounded up to a power of two: it tells nobody how long
    an expected output is.
    """
    room = 2 * max(len(output.encode("utf-8", "surrogatepass")) for output in cases.outputs)
    return least if room <= least else 1 << (room - 1).bit_length()


def _last_line(text: str) -> str:
    """Return the last line that the program wrote, or the exit status that the sandbox adds if there is no other."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    printed = [line for line in lines if not line.startswith("exit status ")]
    last = (printed or lines or [""])[-1][:ERROR_LENGTH]
    # A program may print what moves a terminal's cursor; notes are for people to read there.
    return "".join(character if character.isprintable() else "?" for character in last)


class Judges:
    """Threads that judge. They are daemons: a verdict that nobody waits for must not keep the process alive."""

    def __init__(self, open_sandbox: Callable[[], Sandbox], *, limits: Limits, stop_at_first: bool) -> None:
        self._open_sandbox = open_sandbox
        self._limits = limits
        self._stop_at_first = stop_at_first
        self._lock = threading.RLock()
        self._known: OrderedDict[bytes, Trial] = OrderedDict()
        self._queue: PriorityQueue[tuple[int, int, Future[None], Work]] = PriorityQueue()
        self._numbers = count()
        self._sandbox: Sandbox | SandboxError | None = None
        self._threads = 0
        self._seats = threading.Semaphore(1)

    def start(self, source: str, cases: Cases) -> Trial:
        """Queue a program's first slice and return at once, with the same object for the same program and tests.

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
            self._put(FIRST, trial.first, trial.run_first)
            self._known[key] = trial
            if len(self._known) > KEPT:
                self._known.popitem(last=False)
        return trial

    def results(self, batch: Sequence[Trial]) -> list[Judgement | SandboxError]:
        """Wait for the verdicts on a batch of programs, in order; an error where the sandbox failed or was too slow."""
        programs = list(dict.fromkeys(batch))
        failures = dict[Trial, SandboxError]()
        until = self._deadline(sum(program.tests_left for program in programs))
        for program in programs:
            self._wait(program, program.first, until, failures)
        slow = [program for program in programs if program not in failures and program.is_slow]
        allowance = self._limits.seconds * max(LEAST_ALLOWANCE, len(batch) / PROGRAMS_PER_LIMIT)

        def may_go_on(index: int) -> bool:
            return sum(trial.lost_seconds for trial in slow[:index]) < allowance

        for index, program in enumerate(slow):
            if program.rest is None or program.rest.done():
                program.rest = Future()
                self._put(REST, program.rest, partial(program.run_rest, may_go_on=partial(may_go_on, index)))
        until = self._deadline(sum(program.tests_left for program in slow))
        for program in slow:
            assert program.rest is not None
            self._wait(program, program.rest, until, failures)
        cut = {program for index, program in enumerate(slow) if not may_go_on(index)}
        known = {trial: trial.judgement(cut_short=trial in cut) for trial in programs if trial not in failures}
        if cut:
            with self._lock:  # what is not known of them must not be remembered, nor their tests be kept
                self._known = OrderedDict((key, trial) for key, trial in self._known.items() if trial not in cut)
        return [failures[program] if program in failures else known[program] for program in batch]

    def _put(self, order: int, future: Future[None], work: Work) -> None:
        self._queue.put((order, next(self._numbers), future, work))
        with self._lock:
            if self._threads == 0:
                self._add_thread()

    def _deadline(self, tests: int) -> float:
        """Return the deadline for so many tests, on the clock of `time.monotonic`."""
        slots = 1 if self._sandbox is None or isinstance(self._sandbox, SandboxError) else self._sandbox.slots
        return time.monotonic() + START_SECONDS + TRIES * self._limits.wall_seconds * -(-tests // slots)

    def _wait(self, program: Trial, work: Future[None], until: float, failures: dict[Trial, SandboxError]) -> None:
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
        """Return the sandbox. One thread opens it; after that there are as many threads as it can use."""
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
    """Wrap an action so that only the first call runs it."""
    left = [action]
    return lambda: left.pop()() if left else None
