"""Interrupts of a thread: by another thread that watches it, and by signals to stop the run.

In the main thread a signal interrupts what runs, a blocking system call included. Elsewhere an exception is raised at
the next instruction of Python, so there a call that blocks in C ends only when it returns.
"""

import ctypes
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNAL = signal.SIGRTMIN + 8 if hasattr(signal, "SIGRTMIN") else signal.SIGURG
"""Signal that wakes the main thread: SIGALRM may be a reward function's own, as it is math-verify's."""
AGAIN_SECONDS = 0.25
"""Seconds from one signal to the next: one that arrives between two instructions may find the thread asleep again."""
STILL_LATE_SECONDS = 1.0
"""Seconds from one interruption of late code to the next, as long as it continues."""
STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

_open_in_main_thread = list["Interrupt"]()
_former = dict[int, list[Any]]()
"""By signal, the handlers that `take_signal` has replaced, the program's own first."""


def may_take(number: int) -> bool:
    """True if a signal has its default handler, one of ours, or one of a library that a run starts.

    What a program handles itself stays the program's: it may stop the run in its own way, from a callback.
    """
    handler = signal.getsignal(number)
    if handler in (signal.SIG_DFL, signal.default_int_handler):
        return True
    return callable(handler) and (getattr(handler, "__module__", None) or "").partition(".")[0] in ("paceline", "ray")


def take_signal(number: int, handler: Callable[[int, FrameType | None], None]) -> None:
    """Handle a signal until `give_signal_back`; a forked child has the program's own handler again."""
    _former.setdefault(number, []).append(signal.signal(number, handler))


def give_signal_back(number: int) -> None:
    """Set the handler that there was before the latest `take_signal`."""
    signal.signal(number, _former[number].pop())


class Interrupt:
    """Exceptions that other threads raise in the thread that made this object, between `open` and `close`.

    All of the main thread share one signal. If several want to raise at once, the innermost does, and the others with
    their next signal.
    """

    def __init__(self) -> None:
        self.over = threading.Event()
        """Set by a thread that is on its way out: from then on nothing is raised."""
        self.has_raised = False
        self._thread = threading.get_ident()
        self._is_main = threading.current_thread() is threading.main_thread()
        self._wanted: BaseException | None = None
        self._raised: BaseException | None = None
        self._sending = threading.Lock()

    def open(self) -> None:
        """Begin to listen."""
        if self._is_main:
            self._previous = signal.signal(SIGNAL, _raise_wanted)
            _open_in_main_thread.append(self)

    def close(self) -> None:
        """Raise nothing once this returns, and give the signal back."""
        self.over.set()
        with self._sending:
            self._wanted = self._raised = None  # their tracebacks hold the frames of the block
            if not self._is_main:
                _raise_in(self._thread, None)  # takes back what has not been raised yet
            elif self in _open_in_main_thread:
                _open_in_main_thread.remove(self)
                # never the default action, which ends the process: a signal may still be on its way
                signal.signal(SIGNAL, self._previous if callable(self._previous) else signal.SIG_IGN)

    def send(self, error: BaseException) -> None:
        """Raise an error in the thread; the same one is raised once, however often it is sent."""
        with self._sending:
            self._wanted = error
            if self.over.is_set():
                return
            if self._is_main:
                signal.pthread_kill(self._thread, SIGNAL)
            else:
                self.has_raised = True
                _raise_in(self._thread, type(error))

    def insist(
        self, error: BaseException, *, seconds: float = math.inf, force: Callable[[BaseException], None] | None = None
    ) -> None:
        """Raise an error in the thread, and call `force` if it is not over after so many seconds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if not self.has_raised:
                self.send(error)
            if self.over.wait(min(AGAIN_SECONDS, seconds / 4)):
                return
        if force is not None:
            force(error)

    def raise_here(self, error: BaseException | None) -> None:
        """Raise an error in the thread itself, unless it is None or was raised before."""
        if error is not None and error is not self._raised and not self.over.is_set():
            self._raised, self.has_raised = error, True
            raise error


def _raise_wanted(number: int, frame: FrameType | None) -> None:
    for interrupt in reversed(_open_in_main_thread.copy()):
        interrupt.raise_here(interrupt._wanted)


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    error = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), error)


@contextmanager
def interrupted_after(seconds: float, late: type[BaseException]) -> Iterator[None]:
    """Raise `late` inside the block once it has taken so many seconds, and at its end if the block swallowed that.

    A block that swallows every exception is interrupted again and again.
    """
    interrupt = Interrupt()

    def watch() -> None:
        pause = seconds
        while not interrupt.over.wait(pause):
            interrupt.send(late())
            pause = STILL_LATE_SECONDS

    interrupt.open()
    try:
        threading.Thread(target=watch, name="deadline", daemon=True).start()
        try:
            yield
        finally:
            interrupt.over.set()
    except Exception as error:
        if interrupt.has_raised:
            raise late from error
        raise
    finally:
        # not in the inner block: that one may itself be interrupted
        interrupt.close()
    if interrupt.has_raised:
        raise late


class GraceOver(KeyboardInterrupt):
    """End of the grace period before the current step was done."""


class StopRequest:
    """Context manager that remembers a first signal to stop (SIGINT, SIGTERM, SIGHUP), for a loop to read between two
    steps. A second one interrupts at once, and so does the end of the grace period.

    A signal that `nohup` ignores stays ignored, and one that the program handles itself stays the program's.
    """

    def __init__(self, grace: float = 0.0, tell: Callable[[str], None] | None = None) -> None:
        """Listen from the beginning of the block on.

        Args:
            grace: seconds that the block may continue after the first signal; 0: without limit.
            tell: called with the name of the first signal, in a thread: what is interrupted may hold locks.
        """
        self.received: str | None = None
        """Name of the received signal, or None."""
        self._grace, self._interrupt, self._tell = grace, Interrupt(), tell

    def __enter__(self) -> "StopRequest":
        self._taken = list(filter(may_take, STOPPING))
        for number in self._taken:
            take_signal(number, self._note)
        self._interrupt.open()
        return self

    def __exit__(self, *exception: object) -> None:
        self._interrupt.close()
        for number in self._taken:
            give_signal_back(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name
        if self._tell is not None:
            threading.Thread(target=self._tell, args=(self.received,), name="stop notice", daemon=True).start()
        if self._grace:
            threading.Thread(target=self._wait, name="grace", daemon=True).start()

    def _wait(self) -> None:
        if not self._interrupt.over.wait(self._grace):
            sentence = f"{self.received}: the step in hand did not end within {self._grace:g} s (--stop-grace)"
            self._interrupt.insist(GraceOver(sentence))


_forking = threading.local()
"""By thread, the signals that were blocked before it began to fork."""


def _before_fork() -> None:
    """Let a signal to the child wait until it has its own handlers: a grader may stop it at once."""
    taken = [number for number, handlers in _former.items() if handlers]
    _forking.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, taken)


def _after_fork_in_parent() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.blocked)


def _after_fork() -> None:
    """Give a forked child the program's own handlers: `terminate()` of a child that a grader starts ends it at once."""
    for number, handlers in _former.items():
        if handlers:
            signal.signal(number, handlers[0])
    _former.clear()
    _open_in_main_thread.clear()
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.blocked)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork)
