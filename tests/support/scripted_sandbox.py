"""A sandbox that runs nothing: what each job comes to is written by the test."""

import threading
from collections.abc import Callable

from paceline.errors import SandboxError
from paceline.sandbox.programs import Execution, ExecutionStatus, Job


def printed(output: str) -> Execution:
    """A program that ended well and printed this; or a function's value, as JSON text."""
    return Execution(status="finished", output=output, seconds=0.01)


def ended(status: ExecutionStatus, error: str = "") -> Execution:
    """A program that did not end well."""
    return Execution(status=status, output="", error=error, seconds=0.01)


class ScriptedSandbox:
    """Answers each job as `script` says: by an execution, an output, or an exception."""

    description = "scripted"

    def __init__(self, script: Callable[[Job], Execution | str | SandboxError], *, slots: int = 2) -> None:
        self.script = script
        self.slots = self.callers = slots
        self.jobs: list[Job] = []
        self.is_closed = False
        self._lock = threading.Lock()

    def execute(self, job: Job, on_sleep: Callable[[], None] = lambda: None) -> Execution:
        with self._lock:
            self.jobs.append(job)
        outcome = self.script(job)
        if isinstance(outcome, SandboxError):
            raise outcome
        return printed(outcome) if isinstance(outcome, str) else outcome

    def close(self) -> None:
        self.is_closed = True
