"""Whole runs of a tiny model on ranks that torchrun starts on this machine."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.cluster_runs import options_in


def torchrun(*arguments: object, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    """`paceline` as several ranks."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "-m", "paceline"]
    threads = {"OMP_NUM_THREADS": "1"}  # otherwise torchrun says so in many lines
    return subprocess.run(
        [*launcher, *map(str, arguments)],
        env={**os.environ, **threads},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def ours(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What Paceline said of an error, among the launcher's own lines."""
    return [line for line in done.stderr.splitlines() if line.startswith("paceline: ")]


def options(place: Path) -> list[str]:
    """Those of `options_in` as words."""
    return [f"--{name}={value}" for name, value in options_in(place).items()]
