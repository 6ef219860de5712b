"""From a program and its test cases to a verdict per test.

A test is one job of the sandbox, which knows its input alone. What should come out is compared here, where no program
can reach it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.programs import Execution, ExecutionStatus, Job, Limits, Sandbox
from paceline.rewards.programs.cases import Cases
from paceline.rewards.programs.comparing import parse_value, same_output, same_value

Verdict = Literal[
    "pass",
    "wrong",
    "runtime_error",
    "syntax_error",
    "no_function",
    "timeout",
    "memory",
    "output_limit",
    "not_run",
]

SAME_FOR_EVERY_INPUT: tuple[ExecutionStatus, ...] = ("syntax_error", "no_function")
MAX_TIMEOUTS = 2
"""Tests that one program may spend its whole time on; what it has not run by then, it has not passed."""
ERROR_LENGTH = 160
"""Characters of a program's own message in a note."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """What one program is worth."""

    verdicts: tuple[Verdict, ...]
    """One per test, in the order of the tests; at least one."""
    error: str = ""
    """The first failing program's last words, for a person."""

    @property
    def passed(self) -> int:
        """Tests that it passed."""
        return self.verdicts.count("pass")

    @property
    def passed_all(self) -> bool:
        """Whether it passed every test."""
        return self.passed == len(self.verdicts)

    @property
    def note(self) -> str:
        """One line for a person, such as `passed 2 of 5 tests; test 3: timeout`."""
        head = f"passed {self.passed} of {len(self.verdicts)} tests"
        if self.passed_all:
            return head
        place, verdict = next((place, one) for place, one in enumerate(self.verdicts, start=1) if one != "pass")
        return f"{head}; test {place}: {verdict}{f' ({self.error})' if self.error else ''}"


def judge(sandbox: Sandbox, source: str, cases: Cases, *, limits: Limits, stop_at_first: bool) -> Judgement:
    """Run a program on one input after the other, each within `limits`.

    Tests are left out (`not_run`) after the first that fails where `stop_at_first`, after a failure that every input
    would meet (no valid program, no such function), and after the second timeout.

    Raises:
        SandboxError: nothing is known of the program.
    """
    verdicts: list[Verdict] = []
    error = ""
    for given, expected in zip(cases.inputs, cases.outputs, strict=True):
        execution = sandbox.execute(_job(source, cases, given, limits))
        verdict = _verdict(execution, cases, expected)
        if verdict not in ("pass", "wrong") and not error and set(verdicts) <= {"pass"}:
            error = _last_line(execution.error)
        verdicts.append(verdict)
        if _is_enough(verdicts, stop_at_first=stop_at_first):
            break
    missing: list[Verdict] = ["not_run"] * (len(cases.inputs) - len(verdicts))
    return Judgement(verdicts=(*verdicts, *missing), error=error)


def _job(source: str, cases: Cases, given: str, limits: Limits) -> Job:
    if cases.function is None:
        return Job(source=source, stdin=given, limits=limits)
    return Job(source=source, function=cases.function, arguments=given, limits=limits)


def _verdict(execution: Execution, cases: Cases, expected: str) -> Verdict:
    if execution.status != "finished":
        return execution.status
    if cases.function is None:
        return "pass" if same_output(expected, execution.output) else "wrong"
    return "pass" if _returned(expected, execution.output, in_list=cases.in_list) else "wrong"


def _returned(expected: str, output: str, *, in_list: bool) -> bool:
    is_readable, wanted = parse_value(expected)
    is_plain, value = parse_value(output)
    if not is_readable or not is_plain:
        return False
    return same_value(wanted, value) or (in_list and isinstance(wanted, list) and same_value(wanted[0], value))


def _is_enough(verdicts: Sequence[Verdict], *, stop_at_first: bool) -> bool:
    last = verdicts[-1]
    if last == "pass":
        return False
    return stop_at_first or last in SAME_FOR_EVERY_INPUT or verdicts.count("timeout") >= MAX_TIMEOUTS


def _last_line(text: str) -> str:
    """The program's own last line; what the sandbox adds below it, its exit status, only where there is no other."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith("exit status ")]
    last = (own or lines or [""])[-1][:ERROR_LENGTH]
    # A program may print what moves a terminal's cursor; notes are for people to read there.
    return "".join(one if one.isprintable() else "?" for one in last)
