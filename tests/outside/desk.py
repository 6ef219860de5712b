"""A folder in which a user works: programs and commands run there as from a shell, with relative names."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import dedent

from tests.support.forked import LONGEST_SECONDS, Program, python

TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
ACCELERATE = ("-m", "accelerate.commands.accelerate_cli", "launch", "--multi_gpu", "--num_processes", "2")


class Desk:
    """A user's folder: `path` is its absolute place, where every command starts unless `cwd` says otherwise."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, text: str) -> Path:
        """Write `text`, dedented, as the file `name` below this folder."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text), encoding="utf-8")
        return file

    def shell(self, script: str, *, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a script of bash, dedented, up to its first command that fails; errors are in `stdout` too."""
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", dedent(script)],
            cwd=self.path,
            env=_environment(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=LONGEST_SECONDS,
        )

    def python(
        self, *words: object, cwd: str = ".", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `python WORDS` from `cwd`, relative to this folder, and return its exit status and output.

        The process is forked, which takes milliseconds where the libraries' import takes seconds, unless it depends on
        the start itself: a variable that the interpreter reads, an option of its own, a launcher.
        """
        given = [str(word) for word in words]
        if _is_forked(given, env):
            program = Program(python, given, str(self.path / cwd), _environment(env))
            return program.start().end()
        return subprocess.run(
            [sys.executable, *given],
            cwd=self.path / cwd,
            env=_environment(env),
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST_SECONDS,
        )

    def paceline(
        self, *words: object, cwd: str = ".", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the command `paceline WORDS`."""
        return self.python("-m", "paceline", *words, cwd=cwd, env=env)

    def interrupt(
        self, *words: object, when: Callable[[], bool], cwd: str = ".", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `python WORDS` and press Ctrl-C once `when()` holds: SIGINT goes to the whole process group."""
        given = [str(word) for word in words]
        assert _is_forked(given, env)
        with Program(python, given, str(self.path / cwd), _environment(env)) as program:
            deadline = time.monotonic() + LONGEST_SECONDS
            while not program.ends_within(0.05) and not when() and time.monotonic() < deadline:
                pass  # another process's file is polled, which sends no event
            if not program.ends_within(0):
                program.send(signal.SIGINT, group=True)
            return program.end(max(1.0, deadline - time.monotonic()))


def _is_forked(words: Sequence[str], more: Mapping[str, str] | None) -> bool:
    """Return False for a process that depends on the start of an interpreter, or on a launcher's own."""
    options = [word for word in words[:1] if word.startswith("-") and word != "-m"]
    is_launcher = words[:1] == ["-m"] and words[1].startswith("accelerate.")
    return not (options or is_launcher or any(name.startswith(("PYTHON", "LC_")) for name in more or {}))


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    """A shell's environment: one thread per process, no Hub, this environment's programs first in PATH."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        **(more or {}),
    }
