"""Pairs that take algebra, judged in a pool of worker processes; a fork of this process starts a pool of its own."""

import atexit
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from paceline.errors import RewardError
from paceline.processes.pool import WALL_SECONDS, WorkerPool, work
from paceline.rewards.maths.equality import decide, recognises
from paceline.rewards.maths.symbolic import parses, prove

MIN_WORKERS, MAX_WORKERS = 2, 4
"""Processes of about 100 MB each, one per core within these bounds: with two, others can pass a hostile answer."""
COMMAND = (sys.executable, "-P", "-c", "from paceline.rewards.maths.proving import work_on_pairs; work_on_pairs()")
"""A worker; `-P` keeps the working directory, which may have a `math.py`, out of its imports."""
REMEDY = "check that `python -c 'import math_verify'` works and that new processes may be started"

_USUAL = (
    ("x^2-1", "(x-1)(x+1)"),
    (r"\sqrt{2}+\frac{\pi}{3}", r"\frac{\pi}{3}+2^{1/2}"),
    (r"\frac{2}{\sqrt{3}}", r"\frac{2\sqrt{3}}{3}"),
    (r"y=2x+3", r"2x-y+3=0"),
    (r"e^{x}\sin 2x", r"2e^x\sin x\cos x"),
    (r"\ln 8", r"3\ln 2"),
)
"""Pairs whose proofs load whatever the algebra loads at first use."""


def _failure(reason: str) -> RewardError:
    return RewardError(f"math answers cannot be compared: {reason}")


def proof_pool(size: int, command: Sequence[str] = COMMAND, wall_seconds: float = WALL_SECONDS) -> WorkerPool:
    """Make a pool that judges `{"gold": ..., "answer": ...}`; `{"gold": ...}` checks a gold answer.

    A reply has `equal` and `rule`. The exception of a request is a RewardError where the grader itself failed.
    """
    return WorkerPool(size, command, failure=_failure, remedy=REMEDY, wall_seconds=wall_seconds)


_pool: WorkerPool | None = None
_pool_lock = threading.Lock()


def proofs() -> WorkerPool:
    """Return the pool of this process, made when it is first needed."""
    global _pool
    with _pool_lock:
        if _pool is None:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            _pool = proof_pool(min(max(MIN_WORKERS, cores), MAX_WORKERS))
        return _pool


def _close() -> None:
    if _pool is not None:
        _pool.close()


def _after_fork() -> None:
    """In the child: the thread that owns the workers stayed behind in the parent."""
    global _pool, _pool_lock
    if _pool is not None:
        _pool.abandon()
    _pool, _pool_lock = None, threading.Lock()


atexit.register(_close)
os.register_at_fork(after_in_child=_after_fork)


def work_on_pairs() -> None:
    """Run as a worker: judge pairs by the rules, the symbolic one included."""
    work(_load, lambda request: _judge(request), timeout={"equal": False, "rule": "timeout"})


def _load() -> None:
    for gold, answer in _USUAL:
        prove(gold, answer)


def _judge(request: dict[str, Any]) -> dict[str, object]:
    from sympy.core.random import seed

    seed(0)  # sympy tries expressions at random points: the same ones for a pair, whatever was judged before it
    try:
        if "answer" in request:
            verdict = decide(request["gold"], request["answer"], prove)
            return asdict(verdict) if verdict else {"equal": False, "rule": "symbolic"}
        return {"equal": bool(recognises(request["gold"], parses)), "rule": "symbolic"}
    except (MemoryError, RecursionError):  # the answer's own computation took them: it is not shown to be equal
        return {"equal": False, "rule": "symbolic"}
