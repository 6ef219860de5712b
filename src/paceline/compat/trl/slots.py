"""Objects of a program's own, each with a thread: made once, and lent to one episode after another.

What an object opens may belong to the thread that opened it, so all its methods run in one.
"""

import asyncio
import heapq
import inspect
import queue
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from functools import partial
from typing import Any

from paceline.environments.hosting.threads import OwnThread


class SlotThread(OwnThread):
    """The thread of an object; what its functions raise is raised where they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.is_lost = False
        """True once a call in it has taken too long."""

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run a function; raises what it raises. A task that is cancelled meanwhile leaves the thread behind."""
        try:
            return await asyncio.wrap_future(self._begun(function))
        except asyncio.CancelledError:
            self.leave()
            raise

    def call(self, function: Callable[[], Any], seconds: float) -> Any:
        """Run a function while the caller waits; raises what it raises, and TimeoutError after so many seconds."""
        begun = self._begun(function)
        if not wait([begun], seconds).done:
            self.leave()
            raise TimeoutError(f"it took more than {seconds:g} seconds")
        return begun.result()

    def _begun(self, function: Callable[[], Any]) -> Future[Any]:
        begun = Future[Any]()
        begun.set_running_or_notify_cancel()

        def arrived(value: Any, raised: BaseException | None) -> None:
            begun.set_result(value) if raised is None else begun.set_exception(_as_exception(raised))

        self.submit(function, arrived)
        return begun

    def leave(self) -> None:
        """Interrupt what runs, and let the thread end."""
        self.is_lost = True
        self.interrupt()


def _as_exception(raised: BaseException) -> Exception:
    """Return what a program raised as what may be raised anywhere: sys.exit() ends no run from here, no future takes a
    StopIteration, and a CancelledError is not of the task that waits."""
    if isinstance(raised, Exception) and not isinstance(raised, StopIteration | CancelledError):
        return raised
    return RuntimeError(f"{type(raised).__name__}: {raised}")


class Slot:
    """An object with its thread; one episode at a time has it."""

    def __init__(self, number: int, factory: Callable[[], Any]) -> None:
        self.number, self._factory, self.thread = number, factory, SlotThread()
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
        self._collect()
        if self._free:
            return heapq.heappop(self._free)
        self._count += 1
        return Slot(self._count - 1, self._factory)

    @property
    def free(self) -> list[Any]:
        """Objects that no episode has, in the order of their slots."""
        self._collect()
        return [slot.inner for slot in sorted(self._free)]

    def _collect(self) -> None:
        while not self._returned.empty():
            heapq.heappush(self._free, self._returned.get())

    def give_back(self, slot: Slot) -> None:
        """Give back a slot, from any thread; one whose thread is lost is left behind."""
        if not slot.thread.is_lost:
            self._returned.put(slot)
