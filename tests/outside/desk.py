"""A folder in which a user works: programs and commands run there as from a shell, with relative names."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent

LONGEST_SECONDS = 300.0
"""A program that has not ended by then hangs."""

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
        """Run `python WORDS` from `cwd`, relative to this folder, and return its exit status and output."""
        return subprocess.run(
            [sys.executable, *map(str, words)],
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
        process = subprocess.Popen(
            [sys.executable, *map(str, words)],
            cwd=self.path / cwd,
            env=_environment(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        deadline = time.monotonic() + LONGEST_SECONDS
        while process.poll() is None and not when():
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)  # polls a file of another process, which sends no event
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        try:
            output, _ = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            raise AssertionError(f"still running after {LONGEST_SECONDS:g} s:\n{output}") from None
        return subprocess.CompletedProcess(list(words), process.returncode, output, "")


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    """A shell's environment: one thread per process, no Hub, this environment's programs first in PATH."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        **(more or {}),
    }
