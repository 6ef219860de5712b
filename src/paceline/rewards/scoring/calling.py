"""Calls reward functions: plain ones one after another, then all async ones together on one event loop."""

import asyncio
import inspect
import os
import threading
import time
from collections.abc import Awaitable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from paceline.rewards.function import BuiltIn, RewardFunction
from paceline.rewards.scoring.arguments import Arguments, owned
from paceline.rewards.scoring.deadline import RewardTimeout, deadline
from paceline.runtime.heartbeat import HEARTBEAT
from paceline.runtime.progress import NULL_PROGRESS, Progress

GRACE_SECONDS = 1.0
"""Async functions are cancelled at their deadline; one that then still blocks the event loop is interrupted."""

CallResult = TypeVar("CallResult")


class TooSlow(Exception):
    """A call was ended at its deadline; it is not made again row by row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallOutcome:
    """What one call came to."""

    result: object = None
    error: BaseException | None = None
    """What the function raised; `result` means nothing then."""
    seconds: float
    """Wall time; calls that wait at the same time count it each."""


def outcomes(
    calls: Sequence[tuple[RewardFunction, Arguments]], *, timeout: float, progress: Progress = NULL_PROGRESS
) -> list[CallOutcome]:
    """Call each function with arguments of its own; nothing that a grader raises passes.

    A call that takes more than `timeout` seconds fails; built-in functions keep deadlines of their own, per answer.
    """
    called = []
    for number, (function, arguments) in enumerate(calls, start=1):
        HEARTBEAT.beat("rewards", f"function {number} of {len(calls)}")
        progress.phase("reward", number - 1, len(calls))
        called.append(_call(function, arguments, timeout))
    waiting = {place: one for place, one in enumerate(called) if inspect.isawaitable(one.result)}
    if waiting:
        for place, outcome in zip(waiting, _together(list(waiting.values()), timeout), strict=True):
            called[place] = outcome
    progress.phase("reward", len(calls), len(calls))
    return called


def _call(function: RewardFunction, arguments: Arguments, timeout: float) -> CallOutcome:
    started = time.perf_counter()
    limit = nullcontext() if isinstance(function, BuiltIn) else deadline(timeout)
    try:
        with limit:
            result: object = function(**(arguments if isinstance(function, BuiltIn) else owned(arguments)))
    except RewardTimeout:
        return CallOutcome(error=_too_slow(timeout), seconds=time.perf_counter() - started)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a grader raises is counted, not fatal
        return CallOutcome(error=error, seconds=time.perf_counter() - started)
    return CallOutcome(result=result, seconds=time.perf_counter() - started)


def _too_slow(timeout: float) -> TooSlow:
    return TooSlow(f"the call took more than --reward-timeout {timeout:g} seconds")


def _together(called: Sequence[CallOutcome], timeout: float) -> list[CallOutcome]:
    """All of them awaited at once; a task of theirs that leaves the program takes this call with it, not the run."""
    started, finished = time.perf_counter(), dict[int, CallOutcome]()
    error: BaseException | None = None
    try:
        with deadline(timeout + GRACE_SECONDS):
            _wait(_all(called, timeout, finished))
    except RewardTimeout:
        error = _too_slow(timeout)
        _thread.cache_clear()  # it may be blocked for good
    except SystemExit as leaving:
        error = leaving
    unfinished = CallOutcome(error=error, seconds=time.perf_counter() - started)
    return [finished.get(place, unfinished) for place in range(len(called))]


async def _all(called: Sequence[CallOutcome], timeout: float, finished: dict[int, CallOutcome]) -> None:
    """Awaits all of them and notes each as soon as it is done."""

    async def note(place: int) -> None:
        finished[place] = await _finished(called[place], timeout)

    await asyncio.gather(*map(note, range(len(called))))


async def _finished(called: CallOutcome, timeout: float) -> CallOutcome:
    assert isinstance(called.result, Awaitable)
    started = time.perf_counter()
    try:
        async with asyncio.timeout(timeout) as limit:
            result = await called.result
    except (Exception, SystemExit, RewardTimeout, asyncio.CancelledError) as error:  # noqa: BLE001 - as above
        failure = _too_slow(timeout) if limit.expired() or isinstance(error, RewardTimeout) else error
        return CallOutcome(error=failure, seconds=called.seconds + time.perf_counter() - started)
    return CallOutcome(result=result, seconds=called.seconds + time.perf_counter() - started)


def _wait(coroutine: Coroutine[object, object, CallResult]) -> CallResult:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(coroutine)
    return _thread().submit(_run, coroutine).result()


def _run(coroutine: Coroutine[object, object, CallResult]) -> CallResult:
    return _runner(os.getpid(), threading.get_ident()).run(coroutine)


@lru_cache
def _runner(process: int, thread: int) -> asyncio.Runner:
    """A thread's one loop: a client that a reward function keeps open belongs to the loop of its first request."""
    return asyncio.Runner()


@lru_cache
def _thread() -> ThreadPoolExecutor:
    """For a notebook, whose own loop is running in the thread that calls."""
    return ThreadPoolExecutor(max_workers=1)
