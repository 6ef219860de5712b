"""Sandboxes for tests: one per level that this host offers, and the processes behind them."""

import os
from pathlib import Path

import pytest

from paceline.sandbox.levels import open_sandbox, probe_levels
from paceline.sandbox.local import LocalSandbox
from paceline.sandbox.programs import Execution, Job, Limits

ISOLATING = ("namespaces", "landlock")
LEVELS = (*ISOLATING, "none")
REPORTS = {report.level: report for report in probe_levels()}


def opened(level: str, slots: int = 1) -> LocalSandbox:
    """A sandbox of that level; skips the test where the host does not offer it."""
    if not REPORTS[level].available:
        pytest.skip(f"level {level} is not available here: {REPORTS[level].reason}")
    sandbox = open_sandbox(level, slots=slots)
    assert isinstance(sandbox, LocalSandbox)
    return sandbox


def strongest() -> str:
    """The level that `auto` takes, or none."""
    return next(level for level in LEVELS if REPORTS[level].available)


def run(sandbox: LocalSandbox, source: str, stdin: str = "", limits: Limits | None = None) -> Execution:
    return sandbox.execute(Job(source=source, stdin=stdin, limits=limits or Limits()))


def call(sandbox: LocalSandbox, source: str, function: str = "f", arguments: str = "[]") -> Execution:
    return sandbox.execute(Job(source=source, function=function, arguments=arguments))


def children(pid: int | None = None) -> set[int]:
    """Processes of sandboxes that this one or another has started, and theirs; not those that compare answers."""
    parents = {int(path.parent.name): parent for path in Path("/proc").glob("[0-9]*/stat") if (parent := _parent(path))}
    found, ours = set[int](), {pid or os.getpid()}
    while ours:
        ours = {child for child, parent in parents.items() if parent in ours and _is_ours(child)}
        found |= ours
    return found


def _parent(stat: Path) -> int | None:
    # of processes and not of threads, whose children go to another thread while one looks
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def _is_ours(pid: int) -> bool:
    try:
        return b"sandbox/inside" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
