"""Memory that interpreters keep between two pieces of code: each has a limit, and all together a share."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

KEPT_MB = 128
"""MiB that one interpreter may keep between two pieces of code: variables, and files that lie in memory."""
SHARE = 4
"""Divisor of the machine's memory: all interpreters of a process together may keep 1 / `SHARE` of it."""
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
PAGE = os.sysconf("SC_PAGE_SIZE")


def shared_mb() -> int:
    """Return the MiB that all interpreters together may keep: a share of what this machine or container has."""
    sizes = [PAGE * os.sysconf("SC_PHYS_PAGES")]
    for name in CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # there is none, or it is `max`
            sizes.append(int(Path(name).read_text()))
    return max(KEPT_MB, (min(sizes) >> 20) // SHARE)


def resident_bytes(pid: int) -> int:
    """Return the bytes in memory of a process and all that descend from it; 0 where the kernel does not tell."""
    total = 0
    for process in _descendants(pid):
        with contextlib.suppress(OSError):  # it has ended
            total += PAGE * int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return total


def _descendants(pid: int) -> Iterator[int]:
    waiting = [pid]
    while waiting:
        process = waiting.pop()
        yield process
        with contextlib.suppress(OSError):
            for children in Path(f"/proc/{process}/task").glob("*/children"):
                waiting += map(int, children.read_text().split())


def refusal(kept: int, *, by_all: int, share_mb: int) -> str | None:
    """Return the reason why an interpreter must not keep so many bytes, with `by_all` of all together; None: it may.

    >>> refusal(200 << 20, by_all=200 << 20, share_mb=4096)
    'its variables and files take more than 128 MiB'
    >>> refusal(1 << 20, by_all=1 << 20, share_mb=4096)
    """
    if kept > KEPT_MB << 20:
        return f"its variables and files take more than {KEPT_MB} MiB"
    if by_all > share_mb << 20:
        return "the machine has no more memory for its variables"
    return None
