"""What it takes to run an untrusted program: the job, the outcome, and the border behind which it runs.

A job holds one input and no expected output: what a program should print never comes near the program.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

ExecutionStatus = Literal[
    "finished", "runtime_error", "syntax_error", "no_function", "timeout", "memory", "output_limit"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one execution may use."""

    seconds: float = 10.0
    """Processor time."""
    memory_mb: int = 512
    """MiB of address space beyond that of the bare interpreter."""
    output_bytes: int = 1 << 20
    """Standard output, or the JSON text of a returned value. A file, and standard error, may have sixteen times
    as many; where that is more than 16 MiB, these or twice as many."""

    @property
    def wall_seconds(self) -> float:
        """On the clock: a program may also wait, and others want the processor too."""
        return max(2 * self.seconds, self.seconds + 3)


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One program and one input of it."""

    source: str
    """Python."""
    stdin: str = ""
    """What standard input holds; used where `function` is None."""
    function: str | None = None
    """The function to call, or the method of a class `Solution`; None: the program runs as `__main__`."""
    arguments: str = "[]"
    """JSON array of the positional arguments, where `function` is given."""
    limits: Limits = Limits()


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """What one job came to."""

    status: ExecutionStatus
    """`finished`: exit status 0 within the limits; whether the output is right is for others to say."""
    output: str
    """Standard output, bytes that are no UTF-8 replaced; or the JSON text of the returned value."""
    error: str = ""
    """The end of standard error, or what the sandbox has to say, for a person."""
    seconds: float
    """Processor time used."""


class Sandbox(Protocol):
    """Runs untrusted programs. Knows nothing of expected outputs, verdicts or rewards."""

    @property
    def description(self) -> str:
        """The isolation in force, in a few words."""

    @property
    def slots(self) -> int:
        """Jobs that compute at the same time; `execute` may be called by any number of threads."""

    @property
    def callers(self) -> int:
        """Threads that it pays to call `execute` from: more than `slots` where a job that sleeps holds none."""

    def execute(self, job: Job, on_sleep: Callable[[], None] = lambda: None) -> Execution:
        """Run one job to its end; `on_sleep` is called where its program waits without computing, and holds no slot.

        Raises:
            SandboxError: the sandbox itself failed, also when tried again; nothing is known of the program.
        """

    def close(self) -> None:
        """End every process of the sandbox; it cannot be used afterwards."""
