"""The event loop of this process for the user's own async code: reward functions, tools and environments.

A client that keeps connections open (httpx, aiohttp, AsyncOpenAI) belongs to the loop of its first request, whoever
makes that. So the loop is never closed, and background tasks continue between two calls.

Code that blocks the loop holds up all other tasks. A caller whose deadline has passed interrupts that code. If it does
not react, as in a C call that never returns, the loop is given up and a new one is made: a thread cannot be killed.
"""

import asyncio
import contextlib
import math
import os
import threading
import time
from collections.abc import Awaitable
from concurrent.futures import Future, wait
from typing import Any, TypeVar, final

from paceline.runtime.interrupts import Interrupt

ANSWER_SECONDS = 1.0
"""Timeout for the loop to react, before and after an interrupt; else it counts as blocked."""
AGAIN_SECONDS = 1.0  # From one cancellation of a task to the next, as long as it continues
PAUSE_SECONDS = 1.0  # An interrupt reaches a thread other than the main one between two waits of this length

T = TypeVar("T")


class BlockedLoop(BaseException):
    """Raised in code that blocks the loop. No `Exception`: code that swallows those must not swallow this."""


@final
class OwnLoop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.is_lost = False
        """True once it is blocked for good: no task begins on it any more."""
        self._loop = asyncio.new_event_loop()
        self._interrupt: Interrupt | None = None
        self._blocker: str | None = None
        self._lock, self._freed = threading.Lock(), Future[str | None]()
        self._freed.set_result(None)
        threading.Thread(target=self._live, name="async", daemon=True).start()

    def begin(self, awaitable: Awaitable[T], name: str) -> Future[T]:
        """Await in a task of this name on the loop.

        Cancelling the future cancels the task until it ends, and interrupts code that blocks the loop.
        """
        done = Future[T]()

        async def awaited() -> T:
            return await awaitable

        def start() -> None:
            task = self._loop.create_task(awaited(), name=name)
            task.add_done_callback(lambda _: _tell(done, task))
            # after the task's first step: what was never begun would warn of that
            done.add_done_callback(lambda _: self._loop.call_soon_threadsafe(cancel, task))

        def free(_: Future[T]) -> None:
            if done.cancelled():
                self.free()

        def cancel(task: asyncio.Task[T]) -> None:
            if not task.done():
                task.cancel()
                self._loop.call_later(AGAIN_SECONDS, cancel, task)

        done.add_done_callback(free)
        self._loop.call_soon_threadsafe(start)
        return done

    def free(self) -> Future[str | None]:
        """Begin to interrupt code that blocks the loop, in a thread; takes at most twice `ANSWER_SECONDS`.

        Returns:
            The name of the task that blocks it, the same for all who ask meanwhile; None: it answered.
        """
        with self._lock:
            if self._freed.done():
                self._freed = Future()
                threading.Thread(target=self._free, args=(self._freed,), name="freeing", daemon=True).start()
            return self._freed

    def settle(self) -> None:
        """Wait for the end of a `free` that is under way."""
        wait([self._freed])

    def _free(self, freed: Future[str | None]) -> None:
        if not self.is_lost:
            self._blocker = None
            if not self._answers():
                running = asyncio.current_task(self._loop)
                self._blocker = "other code" if running is None else running.get_name()
                if self._interrupt is not None:
                    self._interrupt.send(BlockedLoop())
                self.is_lost = not self._answers()
        freed.set_result(self._blocker)

    def _answers(self) -> bool:
        answered = threading.Event()
        self._loop.call_soon_threadsafe(answered.set)
        return answered.wait(ANSWER_SECONDS)

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._interrupt = Interrupt()
        self._interrupt.open()
        while True:
            # asyncio raises what is to leave the program here, besides in who awaits it; an interrupt may come late
            with contextlib.suppress(BlockedLoop, SystemExit, KeyboardInterrupt):
                self._loop.run_forever()


def _tell(done: Future[T], task: asyncio.Task[T]) -> None:
    """Copy the result of a task to a future, unless that was cancelled."""
    if task.cancelled():
        done.cancel()
    elif done.set_running_or_notify_cancel():
        if (error := task.exception()) is None:
            done.set_result(task.result())
        else:
            done.set_exception(error)


def wait_here(future: Future[Any], seconds: float = math.inf) -> bool:
    """Wait in this thread for a future of the loop, at most `seconds`; return True if it is done."""
    until = time.monotonic() + seconds
    while not future.done() and (left := until - time.monotonic()) > 0:
        wait([future], min(PAUSE_SECONDS, left))
    return future.done()


_loop: OwnLoop | None = None
_loop_lock = threading.Lock()


def own_loop() -> OwnLoop:
    """Return the loop of this process, made at its first use, and again once the former one is lost."""
    global _loop
    with _loop_lock:
        if _loop is not None:
            _loop.settle()
        if _loop is None or _loop.is_lost:
            _loop = OwnLoop()
        return _loop


def _after_fork() -> None:
    """Forget the loop: its thread does not live on in a forked child."""
    global _loop, _loop_lock
    _loop, _loop_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
