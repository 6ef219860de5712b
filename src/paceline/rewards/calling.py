"""Calls reward functions: plain ones one after another, then all async ones together on one event loop."""

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from paceline.rewards.function import RewardFunction

Arguments = Mapping[str, list[object]]
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What one call came to."""

    result: object = None
    error: BaseException | None = None
    """What the function raised; `result` means nothing then."""
    seconds: float
    """Wall time; calls that wait at the same time count it each."""


def outcomes(calls: Sequence[tuple[RewardFunction, Arguments]]) -> list[Outcome]:
    """Call each function with lists of its own; nothing that a grader raises passes."""
    called = [_call(function, arguments) for function, arguments in calls]
    waiting = {place: one for place, one in enumerate(called) if inspect.isawaitable(one.result)}
    if waiting:
        for place, outcome in zip(waiting, _together(list(waiting.values())), strict=True):
            called[place] = outcome
    return called


def _call(function: RewardFunction, arguments: Arguments) -> Outcome:
    started = time.perf_counter()
    try:
        result: object = function(**{name: list(values) for name, values in arguments.items()})
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a grader raises is counted, not fatal
        return Outcome(error=error, seconds=time.perf_counter() - started)
    return Outcome(result=result, seconds=time.perf_counter() - started)


def _together(called: Sequence[Outcome]) -> list[Outcome]:
    """All of them awaited at once; a task of theirs that leaves the program takes this call with it, not the run."""
    started = time.perf_counter()
    try:
        return _wait(_all(called))
    except SystemExit as error:
        return [Outcome(error=error, seconds=time.perf_counter() - started)] * len(called)


async def _all(called: Sequence[Outcome]) -> list[Outcome]:
    return await asyncio.gather(*map(_finished, called))


async def _finished(called: Outcome) -> Outcome:
    assert isinstance(called.result, Awaitable)
    started = time.perf_counter()
    try:
        result = await called.result
    except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001 - as above
        return Outcome(error=error, seconds=called.seconds + time.perf_counter() - started)
    return Outcome(result=result, seconds=called.seconds + time.perf_counter() - started)


def _wait(coroutine: Coroutine[object, object, Result]) -> Result:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(coroutine)
    return _thread().submit(_run, coroutine).result()


def _run(coroutine: Coroutine[object, object, Result]) -> Result:
    return _runner(threading.get_ident()).run(coroutine)


@lru_cache
def _runner(thread: int) -> asyncio.Runner:
    """A thread's one loop: a client that a reward function keeps open belongs to the loop of its first request."""
    return asyncio.Runner()


@lru_cache
def _thread() -> ThreadPoolExecutor:
    """For a notebook, whose own loop is running in the thread that calls."""
    return ThreadPoolExecutor(max_workers=1)
