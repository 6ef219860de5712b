"""Environments of this process that may wait: sync methods in threads, async ones on the event loop that
async reward functions have too.

All but what runs in these threads is called from the event loop of `Hosts`. A call that is late is left behind: its
outcome is settled, and its thread is interrupted at the next instruction of Python, again and again, as it may swallow
exceptions. A call blocked in C keeps its thread, and a new thread takes its place.
"""

import asyncio
import contextlib
import inspect
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any

from paceline.environments import Environment
from paceline.environments.hosting.results import (
    Method,
    Overtime,
    TooLate,
    attempt,
    attempt_async,
    checked,
    described,
    dismiss,
    own_copy,
)
from paceline.environments.tools import ToolEnvironment
from paceline.processes.forking import Result
from paceline.processes.starting import HostFailure
from paceline.runtime.interrupts import Interrupt
from paceline.runtime.own_code import OwnLoop, own_loop

AGAIN_SECONDS = 1.0  # Seconds from one interruption of a late call to the next, as long as it continues
END_SECONDS = 12.0
"""Seconds in which tools end what a call of theirs has started; a server that is deaf is killed within ten."""
MOST_LEFT = 64
"""Threads that calls left behind may hold."""

Arrived = Callable[[Any, BaseException | None], None]
ThreadJob = tuple[Callable[[], Any], Arrived]
"""A function, and what gets its result or what it raised."""
_CALL = threading.local()
"""By thread, what lets the deadline of its call stand still, and go on."""


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Wait for what other episodes hold: the deadline of the call in whose thread this is stands still meanwhile."""
    hold = getattr(_CALL, "hold", bool)  # there is none where nobody waits for this thread with a deadline
    hold(True)
    try:
        yield
    finally:
        hold(False)


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(function)


def _settle(future: "asyncio.Future[Result]", result: Result) -> None:
    if not future.done():
        future.set_result(result)


class OwnThread:
    """A daemon thread that runs one call after another, and ends with the object."""

    def __init__(self) -> None:
        self._jobs, self._interrupts = SimpleQueue[ThreadJob | None](), list[Interrupt]()
        self.thread = threading.Thread(
            target=_work, args=(self._jobs, self._interrupts), name="environment", daemon=True
        )
        self.thread.start()
        weakref.finalize(self, self._jobs.put, None).atexit = False

    def submit(self, function: Callable[[], Any], arrived: Arrived) -> None:
        """Run a function after those before it; `arrived` is called there with its result, or with what it raised."""
        self._jobs.put((function, arrived))

    def end(self) -> None:
        """Let the thread end after the calls that it has got."""
        self._jobs.put(None)

    def interrupt(self) -> None:
        """Raise `Overtime` in what runs, of which nothing arrives then, and let the thread end."""
        self.end()
        for interrupt in self._interrupts:
            interrupt.send(Overtime())


def _work(jobs: "SimpleQueue[ThreadJob | None]", interrupts: list[Interrupt]) -> None:
    """Live as an `OwnThread`, without a reference to it."""
    interrupt = Interrupt()
    interrupts.append(interrupt)
    with contextlib.suppress(Overtime):
        interrupt.open()
        try:
            while (job := jobs.get()) is not None:
                function, arrived = job
                value: Any = None
                raised: BaseException | None = None
                try:
                    value = function()
                except Overtime:
                    return
                except BaseException as error:  # noqa: BLE001 - the border; a KeyboardInterrupt that no key was pressed for
                    raised = error
                arrived(value, raised)
                del job, function, arrived, value, raised  # what they hold must not live on while the thread waits
        finally:
            interrupt.close()


class _Deadline:
    """The deadline of a call in a thread; it stands still while the call waits for what other episodes hold."""

    def __init__(self, seconds: float, wait: float, on_waited: Callable[[float], None]) -> None:
        self.timeout = asyncio.timeout(seconds)
        self.waits, self.is_over = False, False
        self._left, self._wait, self._on_waited, self._loop = seconds, wait, on_waited, asyncio.get_running_loop()
        self._since = self._loop.time()

    def hold(self, waits: bool) -> None:
        """Begin or end a wait, on the loop."""
        if self.is_over or self.timeout.expired():
            return
        now, passed = self._loop.time(), self._loop.time() - self._since
        if waits:
            self._left -= passed
        else:
            self._on_waited(passed)
        self.waits, self._since = waits, now
        self.timeout.reschedule(now + (self._wait if waits else self._left))


class WorkerThreads:
    """Daemon threads, each of which runs one call at a time; as many as are needed up to a limit."""

    def __init__(self, most: int, wait: float) -> None:
        """`wait`: seconds that a call waits for a free thread, at most."""
        self.wait = wait
        self._idle: list[OwnThread] = []
        self._left: list[OwnThread] = []
        self._free = asyncio.Semaphore(most)

    @property
    def left(self) -> int:
        """Number of threads that late calls still hold."""
        return sum(worker.thread.is_alive() for worker in self._left)

    async def run(self, function: Callable[[], Any], seconds: float, on_waited: Callable[[float], None]) -> Result:
        """Run code of an environment; `on_waited` gets the seconds that it waited, for a free thread or in `waiting`.

        Raises:
            TooLate: it took more than `seconds`, besides those.
            HostFailure: no thread was free within `wait` seconds, or what it waited for.
        """
        if self.left >= MOST_LEFT:
            raise HostFailure(f"{MOST_LEFT} earlier calls took too long and still hold their threads")
        loop, wait, began = asyncio.get_running_loop(), self.wait, time.monotonic()
        try:
            async with asyncio.timeout(wait):
                await self._free.acquire()
        except TimeoutError:
            raise HostFailure(f"no thread was free for it within {wait:g} seconds") from None
        on_waited(time.monotonic() - began)
        worker = self._idle.pop() if self._idle else OwnThread()
        done: asyncio.Future[Result] = loop.create_future()
        deadline = _Deadline(seconds, wait, on_waited)

        def arrived(value: Any, raised: BaseException | None) -> None:
            result = value if raised is None else (None, described(raised))
            _call_in(loop, partial(_settle, done, result))

        def carried_out() -> Result:
            _CALL.hold = lambda waits: _call_in(loop, partial(deadline.hold, waits))
            try:
                return attempt(function)
            finally:
                del _CALL.hold  # it would keep the environment alive while the thread is idle

        worker.submit(carried_out, arrived)
        try:
            async with deadline.timeout:
                return await done
        except TimeoutError:
            if deadline.waits:
                raise HostFailure(f"what it waited for was not free within {wait:g} seconds") from None
            raise TooLate from None
        finally:
            deadline.is_over = True
            self._free.release()
            if done.done() and not done.cancelled():
                self._idle.append(worker)
            else:
                self._left.append(worker)
                self._insist(worker, loop)

    def _insist(self, worker: OwnThread, loop: asyncio.AbstractEventLoop) -> None:
        """Interrupt a call until its thread ends."""
        if worker.thread.is_alive():
            worker.interrupt()
            loop.call_later(AGAIN_SECONDS, self._insist, worker, loop)

    def close(self) -> None:
        """Let go of all threads; those of late calls may go on."""
        for worker in self._idle:
            worker.end()
        self._idle.clear()


async def run_async(
    loop: OwnLoop, awaitable: Awaitable[Any], check: Callable[[Any], Any], name: str, seconds: float
) -> Result:
    """Await what an async method of the environment `name` returned, on the event loop of the user's own code.

    Raises:
        TooLate: it took more than `seconds`; the sentence is of what blocked the loop meanwhile.
    """
    if loop.is_lost:
        dismiss(awaitable)
        return None, "the event loop of its async methods was blocked for good by other code"
    running = loop.begin(attempt_async(awaitable, check), f"environment {name!r}")
    try:
        async with asyncio.timeout(seconds):
            return await asyncio.wrap_future(running)
    except TimeoutError:
        blocker = await asyncio.wrap_future(loop.free())
        blocked = f"{blocker} blocked the event loop that async code shares; make it await, or not async"
        raise TooLate("" if blocker is None else blocked) from None


class ThreadHost:
    """One environment of this process."""

    def __init__(self, name: str, make: Callable[[], Environment], threads: WorkerThreads) -> None:
        self.started = time.perf_counter()
        self._name, self._make, self._threads = name, make, threads
        self._environment: Environment | None = None
        self._loop: OwnLoop | None = None
        self._is_closed, self.printed = False, tuple[str, ...]()

    async def call(self, method: Method, arguments: tuple[Any, ...], seconds: float) -> Result:
        """Call a method: in a thread, or on the event loop where it is async; see `Host`."""
        self.started = time.perf_counter()
        self._is_closed = self._is_closed or method == "close"
        function = getattr(self._environment, method, None)
        if inspect.iscoroutinefunction(function):  # none of its code runs before it is awaited
            value, failure = attempt(lambda: function(*map(own_copy, arguments)))
        else:
            run = partial(self._call, method, arguments)
            value, failure = await self._threads.run(run, seconds, self._waited)
        if failure is not None or not inspect.isawaitable(value):
            return value, failure
        self._loop = self._loop or own_loop()
        check = partial(checked, self._name, method)
        left = seconds - (time.perf_counter() - self.started)
        return await run_async(self._loop, value, check, self._name, left)

    def _waited(self, seconds: float) -> None:
        self.started += seconds

    def _call(self, method: Method, arguments: tuple[Any, ...]) -> Any:
        if method == "begin":
            self._environment = self._make()
        value = getattr(self._environment, method)(*map(own_copy, arguments))
        return value if inspect.isawaitable(value) else checked(self._name, method, value)

    async def end(self, *, seconds: float) -> None:
        """Let it close itself, for so many seconds at most; what comes of that is nobody's result.

        Tools are closed while a late call of theirs goes on too: it is what ends their servers and interpreters.
        """
        seconds = END_SECONDS if isinstance(self._environment, ToolEnvironment) else seconds
        if self._environment is not None and seconds > 0 and not self._is_closed:
            with contextlib.suppress(TooLate, HostFailure):
                await self.call("close", (), seconds)
        self._environment = None
