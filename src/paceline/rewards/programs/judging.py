"""From a program and its test cases to a verdict per test.

A test is one job of the sandbox, which knows its input alone. What should come out is compared here, where no program
can reach it. Every program gets a first slice of processor time, in which most come to an end; one that needs more is
slow, and goes on when all others had theirs (`judges`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from paceline.rewards.programs.cases import Cases
from paceline.rewards.programs.comparing import parse_value, same_output, same_value
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """What one program is worth."""

    verdicts: tuple[ProgramVerdict, ...]
    """One per test, in the order of the tests; at least one."""
    error: str = ""
    """The first failing program's last words, for a person."""

    @property
    def is_cut_short(self) -> bool:
        """True if tests were left out as the batch had used up its time."""
        return "cut_short" in self.verdicts

    @property
    def passed(self) -> int:
        """Tests that it passed."""
        return self.verdicts.count("pass")

    @property
    def note(self) -> str:
        """One line for a person, such as `passed 2 of 5 tests; test 3: timeout`."""
        head = f"passed {self.passed} of {len(self.verdicts)} tests"
        if self.passed == len(self.verdicts):
            return head
        place, verdict = next((place, one) for place, one in enumerate(self.verdicts, start=1) if one != "pass")
        return f"{head}; test {place}: {verdict}{f' ({self.error})' if self.error else ''}"


class Trial:
    """One program on its way through its tests, which may wait between two of them. Not for two threads at once.

    Tests are left out (`not_run`) after the first that fails where `stop_at_first`, after a failure that every input
    would meet (no valid program, no such function), and after the second timeout.
    """

    def __init__(self, source: str, cases: Cases, *, limits: Limits, stop_at_first: bool) -> None:
        """`limits`: of each test; a row with larger expected outputs has more room for output."""
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

    @property
    def is_slow(self) -> bool:
        """True if the first slice was not enough."""
        return self._before is not None

    @property
    def tests_left(self) -> int:
        """Tests that may still have to be run."""
        return len(self._tests)

    def run_first(self, sandbox: Sandbox, on_sleep: Callable[[], None]) -> None:
        """Run its tests until all is known, or the program turns out to be slow; `on_sleep`: see `Sandbox.execute`.

        Raises:
            SandboxError: nothing is known of the program.
        """
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
        """Run the tests that are left of a slow program, each within its whole limits, as long as it `may_go_on`.

        Raises:
            SandboxError: nothing is known of the program.
        """
        while self._tests and may_go_on():
            execution = self._execute(sandbox, self._limits, on_sleep)
            if self._note(execution) != "pass":
                is_over = execution.status == "timeout"
                self.lost_seconds += self._limits.seconds if is_over else execution.seconds

    def judgement(self, *, cut_short: bool) -> Judgement:
        """What is known of the program; `cut_short`: by its first slice alone."""
        kept = self._verdicts[: self._before] if cut_short else self._verdicts
        left: ProgramVerdict = "cut_short" if cut_short else "not_run"
        verdicts = (*kept, *[left] * (self._number - len(kept)))
        return Judgement(verdicts=verdicts, error=OUT_OF_TIME if cut_short else self._error)

    def _execute(self, sandbox: Sandbox, limits: Limits, on_sleep: Callable[[], None]) -> Execution:
        given, _ = self._tests[0]
        stdin, arguments = (given, "[]") if self._function is None else ("", given)
        job = Job(source=self._source, stdin=stdin, function=self._function, arguments=arguments, limits=limits)
        return sandbox.execute(job, on_sleep)

    def _note(self, execution: Execution) -> ProgramVerdict:
        """The verdict on the next test, which is done with; so are all others, where it tells enough."""
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
    """Bytes of output that a right program has room for: twice the largest expected output, at least `least`.

    A program can ask for its limits, so beyond `least` this is rounded up to a power of two: it tells nobody how long
    an expected output is.
    """
    room = 2 * max(len(one.encode("utf-8", "surrogatepass")) for one in cases.outputs)
    return least if room <= least else 1 << (room - 1).bit_length()


def _last_line(text: str) -> str:
    """The program's own last line; what the sandbox adds below it, its exit status, only where there is no other."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith("exit status ")]
    last = (own or lines or [""])[-1][:ERROR_LENGTH]
    # A program may print what moves a terminal's cursor; notes are for people to read there.
    return "".join(one if one.isprintable() else "?" for one in last)
