"""Objects of a program's own, each with a thread: made once, and lent to one episode after another.

What an object opens may belong to the thread that opened it, so all its methods run in one.
"""

import asyncio
import contextlib
import heapq
import inspect
import queue
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from paceline.runtime.interrupts import Interrupt

_Job = tuple[Callable[[], Any], Callable[[Any, Exception | None], None]]
"""A function, and what is to be told of its result or what it raised."""


class _Overtime(BaseException):
    """The call took longer than it may. No `Exception`: a tool that swallows those must not swallow this."""


class OwnThread:
    """A thread that runs one call after another: what a program opens may belong to the thread that opened it."""

    def __init__(self) -> None:
        self.is_lost = False
        """True once a call in it has taken too long."""
        self._jobs, self._interrupts = queue.SimpleQueue[_Job | None](), list[Interrupt]()
        threading.Thread(target=_work, args=(self._jobs, self._interrupts), name="environment", daemon=True).start()
        weakref.finalize(self, self._jobs.put, None).atexit = False  # the thread ends with it

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run a function; raises what it raises. A task that is cancelled meanwhile leaves the thread behind."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()

        def settle(value: Any, error: Exception | None) -> None:
            if not done.done():
                done.set_result(value) if error is None else done.set_exception(error)

        def arrived(value: Any, error: Exception | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, value, error)

        self._jobs.put((function, arrived))
        try:
            return await done
        except asyncio.CancelledError:
            self.leave()
            raise

    def call(self, function: Callable[[], Any], seconds: float) -> Any:
        """Run a function while the caller waits; raises what it raises, and TimeoutError after so many seconds."""
        arrived = queue.SimpleQueue[tuple[Any, Exception | None]]()
        self._jobs.put((function, lambda value, error: arrived.put((value, error))))
        try:
            value, error = arrived.get(timeout=seconds)
        except queue.Empty:
            self.leave()
            raise TimeoutError(f"it took more than {seconds:g} seconds") from None
        if error is not None:
            raise error
        return value

    def leave(self) -> None:
        """Interrupt what runs, and let the thread end."""
        self.is_lost = True
        self._jobs.put(None)
        for interrupt in self._interrupts:
            interrupt.send(_Overtime())


def _work(jobs: "queue.SimpleQueue[_Job | None]", interrupts: list[Interrupt]) -> None:
    interrupt = Interrupt()
    interrupts.append(interrupt)
    interrupt.open()
    try:
        while (job := jobs.get()) is not None:
            function, arrived = job
            value: Any = None
            error: Exception | None = None
            try:
                value = function()
            except _Overtime:
                return
            except StopIteration as stopped:  # no future takes it
                error = RuntimeError(f"StopIteration: {stopped}")
            except Exception as raised:  # noqa: BLE001 - the border to a program's own code
                error = raised
            except BaseException as raised:  # noqa: BLE001 - sys.exit() ends no run from here
                error = RuntimeError(f"{type(raised).__name__}: {raised}")
            arrived(value, error)
            del job, function, arrived, value, error  # what they hold must not live on while the thread waits
    except _Overtime:
        return
    finally:
        interrupt.close()


class Slot:
    """An object with its thread; one episode at a time has it."""

    def __init__(self, number: int, factory: Callable[[], Any]) -> None:
        self.number, self._factory, self.thread = number, factory, OwnThread()
        self.inner: Any = None
        """The object, once it is made."""

    def __lt__(self, other: "Slot") -> bool:
        return self.number < other.number

    def make(self) -> Any:
        """Return the object, made now if it is not made yet; to be called in the slot's own thread."""
        if self.inner is None:
            self.inner = self._factory()
        return self.inner

    async def call(self, function: Callable[..., Any], **given: Any) -> Any:
        """Call a function of the program's in the thread, or await it where it is async."""
        if inspect.iscoroutinefunction(function):
            return await function(**given)
        result = await self.thread.run(partial(function, **given))
        return await result if inspect.isawaitable(result) else result


class SlotPool:
    """Slots of one factory: the free one of the lowest number comes first, so that every run lends them alike."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._factory, self._free, self._count = factory, list[Slot](), 0
        self._returned = queue.SimpleQueue[Slot]()  # a finalizer may run in the middle of anything

    def take(self) -> Slot:
        """Take a free slot, or a new one."""
        while not self._returned.empty():
            heapq.heappush(self._free, self._returned.get())
        if self._free:
            return heapq.heappop(self._free)
        self._count += 1
        return Slot(self._count - 1, self._factory)

    def give_back(self, slot: Slot) -> None:
        """Give back a slot, from any thread; one whose thread is lost is left behind."""
        if not slot.thread.is_lost:
            self._returned.put(slot)
