"""The one event loop of this process for the user's own async code: reward functions, tools and environments.

A client that keeps connections open (httpx, aiohttp, AsyncOpenAI) belongs to the loop of its first request, whoever
makes that. So the loop is never closed, and background tasks go on between two calls.

Code that blocks it holds up all others. Whoever is late frees it; a new one takes its place only where what blocks it
does not let go: a thread cannot be ended, and what waits in C for good keeps it.
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
"""Seconds in which the loop answers, and again after an interrupt; else something blocks it."""
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
        """True once it is blocked for good: nothing begins on it any more."""
        self._loop = asyncio.new_event_loop()
        self._interrupt: Interrupt | None = None
        self._blocker: str | None = None
        self._lock, self._freed = threading.Lock(), Future[str | None]()
        self._freed.set_result(None)
        threading.Thread(target=self._live, name="async", daemon=True).start()

    def begin(self, awaitable: Awaitable[T], name: str) -> Future[T]:
        """Await in a task of this name on the loop.

        Who cancels the future cancels the task until it ends, and frees the loop where something blocks it.
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
        """Begin to interrupt what blocks the loop, if something does, in a thread: within twice `ANSWER_SECONDS`.

        Returns:
            The name of the task that blocks it, the same for all who ask meanwhile; None: it answered.
        """
        with self._lock:
            if self._freed.done():
                self._freed = Future()
                threading.Thread(target=self._free, args=(self._freed,), name="freeing", daemon=True).start()
            return self._freed

    def settle(self) -> None:
        """Wait until it is known whether the loop is lost, if somebody is freeing it."""
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
    """Settle a future with what came of a task, unless it was cancelled."""
    if task.cancelled():
        done.cancel()
    elif done.set_running_or_notify_cancel():
        if (error := task.exception()) is None:
            done.set_result(task.result())
        else:
            done.set_exception(error)


def wait_here(future: Future[Any], seconds: float = math.inf) -> bool:
    """Wait in this thread for what was begun on the loop, for so long at most; returns whether it is done."""
    until = time.monotonic() + seconds
    while not future.done() and (left := until - time.monotonic()) > 0:
        wait([future], min(PAUSE_SECONDS, left))
    return future.done()


_loop: OwnLoop | None = None
_loop_lock = threading.Lock()


def own_loop() -> OwnLoop:
    """Return the loop of this process: made when it is first needed, and anew where the last one is lost."""
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
