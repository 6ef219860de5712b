"""`python`: Python in the sandbox, with variables that stay for the episode.

| the code                                  | the observation                                                      |
|-------------------------------------------|----------------------------------------------------------------------|
| runs to its end                           | what it wrote, then the value of a last expression                   |
| writes nothing                            | `(no output)`                                                        |
| writes more than `SHOWN_BYTES`            | beginning and end, with a line that says how much was left out       |
| raises an exception, or is no Python      | what it wrote, then the traceback; a failed call                     |
| is over its limit of processor time       | `Error: stopped after 5 s of processor time; all variables are lost` |
| sleeps until the limit on the clock       | `Error: stopped after 10 s, asleep; all variables are lost`          |
| ends the interpreter: a crash, `os._exit` | `Error: ended by SIGSEGV; all variables are lost`                    |
| is longer than 64 KiB                     | `Error: the code is longer than 65536 bytes`                         |
| computes for 30 s on a busy machine       | `Error: stopped after 30 s; all variables are lost`                  |
| leaves more than 128 MiB behind           | `Error: its variables and files take more than 128 MiB; ...`         |
| finds the share of memory of all used up  | `Error: the machine has no more memory for its variables; ...`       |
| meets a sandbox that fails                | nothing: the environment has failed                                  |

What was written before a stop is not shown, as it depends on the machine's speed. The module `random` is seeded by the
episode's seed; what code reads of clocks and of `os.urandom` differs in each run. An interpreter is started at the
first call of an episode, and anew after one that ended it.
"""

import threading
from collections.abc import Callable, Sequence
from typing import cast, get_args

from paceline.chat.tools import text_schema
from paceline.environments.hosting.threads import waiting
from paceline.environments.tools import CallError, Tool, tool
from paceline.errors import ConfigError
from paceline.sandbox.interpreters import SOURCE_BYTES, LocalInterpreter
from paceline.sandbox.levels import Level, open_sandbox
from paceline.sandbox.local import LocalSandbox
from paceline.sandbox.programs import Interpreter, Limits

LIMITS = Limits(seconds=5.0, memory_mb=512)
"""Limits of one call; those of memory and files are the interpreter's."""
SHOWN_BYTES = 8192
"""Bytes of an output that are shown."""


SCHEMA = text_schema(
    "python",
    "Run Python code. Returns what it prints and the value of its last line. Variables stay for later calls.",
    code="The code to run.",
)


class PythonTool:
    """`Toolset` of one tool, with an interpreter of its own."""

    tools: Sequence[Tool]

    def __init__(self, open_interpreter: Callable[[int], Interpreter]) -> None:
        """`open_interpreter` makes an interpreter of a seed."""
        self._open = open_interpreter
        self._interpreter: Interpreter | None = None
        self.tools = [tool(self.python)]

    def begin(self, seed: int) -> None:
        """Start an episode."""
        self._interpreter = self._open(seed)

    def python(self, code: str) -> str:
        """Run Python code. Returns what it prints and the value of its last line. Variables stay for later calls.

        Args:
            code: The code to run.
        """
        assert self._interpreter is not None, "an episode has begun"
        if len(code.encode("utf-8", "surrogatepass")) > SOURCE_BYTES:
            raise CallError(f"Error: the code is longer than {SOURCE_BYTES} bytes")
        result = self._interpreter.run(code)
        if result.ended is not None:
            raise CallError(f"Error: {result.ended}; all variables are lost")
        text = result.output.removesuffix("\n") or "(no output)"
        if result.failed:
            raise CallError(text)
        return text

    def close(self) -> None:
        """End the episode, and a call that runs."""
        if self._interpreter is not None:
            self._interpreter.close()


def python_tool(level: str) -> PythonTool:
    """Make the tool in the sandbox of this level, which is opened for the process at its first use."""
    return PythonTool(
        lambda seed: LocalInterpreter(
            sandbox_of(level), seed=seed, limits=LIMITS, shown_bytes=SHOWN_BYTES, waiting=waiting
        )
    )


def check_level(level: str, *, address: str) -> None:
    """Check that interpreters can run at this level of the sandbox, or at this address of a service.

    Raises:
        ConfigError: they cannot.
    """
    if "://" in level:
        raise ConfigError(
            f"--environment {address}: the service at --sandbox runs whole programs, and keeps no variables",
            remedies=[f"name a level of this machine's sandbox, as {address}:auto"],
        )
    if level not in get_args(Level):
        raise ConfigError(
            f"--environment {address}: there is no level {level!r} of the sandbox",
            remedies=[f"choose from {', '.join(get_args(Level))}"],
        )


_SANDBOXES = dict[str, LocalSandbox]()
_OPENING = threading.Lock()


def sandbox_of(level: str) -> LocalSandbox:
    """Return the sandbox for all episodes of the process, which is tested when it is first asked for.

    A fork has the same one, with processes of its own. It closes when the process ends.

    Raises:
        SandboxError: the level cannot be had here.
    """
    with _OPENING:
        if level not in _SANDBOXES:
            sandbox = open_sandbox(cast(Level, level))
            assert isinstance(sandbox, LocalSandbox), "it has no address"
            _SANDBOXES[level] = sandbox
        return _SANDBOXES[level]
