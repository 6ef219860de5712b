"""Objects of a program, checked out by one episode after another, and its code in the thread that trains.

Plain functions run there one after another, as under TRL: signals, connections, thread-locals and event loops are the
program's own. Async ones run on one event loop in a thread, with async reward functions, as under TRL.
"""

import heapq
import inspect
import queue
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from paceline.environments.hosting.results import Overtime, TooLate
from paceline.runtime.interrupts import interrupted_after
from paceline.runtime.own_code import own_loop, wait_here


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Interrupt a block of the program's own code in this thread once it has taken so many seconds.

    Raises:
        TooLate: it took longer, also where it swallowed the interrupt.
    """
    try:
        with interrupted_after(seconds, Overtime):
            yield
    except Overtime:
        raise TooLate from None


def wait_for(awaitable: Awaitable[Any]) -> Any:
    """Await on the event loop of async functions while this thread waits; raises what is raised there."""
    running = own_loop().begin(awaitable, "a tool")
    try:
        wait_here(running)
    finally:
        running.cancel()  # no more than a word where it is done
    return running.result()


class Slot:
    """An object of the program's; one episode at a time has it."""

    def __init__(self, number: int, factory: Callable[[], Any]) -> None:
        self.number, self._factory = number, factory
        self.inner: Any = None
        """The object, once it is made."""
        self.is_lost = False
        """True once a call of the object was interrupted for taking too long."""

    def __lt__(self, other: "Slot") -> bool:
        return self.number < other.number

    def make(self) -> Any:
        """Return the object, made now if it is not made yet."""
        if self.inner is None:
            self.inner = self._factory()
        return self.inner

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Do as `within`; a call that is late loses the slot."""
        try:
            with within(seconds):
                yield
        except TooLate:
            self.is_lost = True
            raise


def call(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call a function of the program's in this thread, and wait for what it returns where that is awaitable."""
    result = function(**arguments)
    return wait_for(result) if inspect.isawaitable(result) else result


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
        """Give back a slot, from any thread; one that is lost is left behind."""
        if not slot.is_lost:
            self._returned.put(slot)
