"""A limit on how long code of the user's own may take, in the thread that calls it.

A thread cannot be killed. In the main thread a signal interrupts what runs, a blocking system call included; elsewhere
an exception is raised at the next instruction of Python, so there a call that blocks in C ends only when it returns.

Code that swallows every exception (`except:` around each row) is interrupted again and again, and what it returns in
the end is no result: a row that was cut short so has a made-up score.
"""

import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

AGAIN_SECONDS = 1.0
"""From one interruption to the next, as long as the code goes on."""


class RewardTimeout(BaseException):
    """The call took longer than it may. No `Exception`: a function that swallows those must not swallow this."""


class _Alarm(Protocol):
    """Raises RewardTimeout in the thread that made it."""

    has_rung: bool

    def ring(self) -> None:
        """Raise it there, unless it was put away; called from another thread."""

    def put_away(self) -> None:
        """Nothing is raised after this returns."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise RewardTimeout inside the block once it has taken `seconds`, and at its end if the block swallowed that."""
    alarm: _Alarm = _BySignal() if threading.current_thread() is threading.main_thread() else _ByException()
    over = threading.Event()
    threading.Thread(target=_watch, args=(alarm, over, seconds), name="reward-deadline", daemon=True).start()
    try:
        try:
            yield
        finally:
            over.set()
    except Exception as error:
        if alarm.has_rung:
            raise RewardTimeout from error
        raise
    finally:
        # Not in the inner block: that one may itself be interrupted by the alarm.
        over.set()
        alarm.put_away()
    if alarm.has_rung:
        raise RewardTimeout


def _watch(alarm: _Alarm, over: threading.Event, seconds: float) -> None:
    while not over.wait(seconds):
        alarm.ring()
        seconds = AGAIN_SECONDS


class _BySignal:
    """A real-time signal: SIGALRM may be the function's own, as it is math-verify's."""

    number = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2

    def __init__(self) -> None:
        self.has_rung = False
        self._is_over = False
        self._lock = threading.Lock()
        self._before = signal.signal(self.number, self._raise)

    def ring(self) -> None:
        with self._lock:
            if not self._is_over:
                signal.pthread_kill(threading.main_thread().ident or 0, self.number)

    def put_away(self) -> None:
        self._is_over = True
        with self._lock:
            # Never the default, which ends the process: a signal that was just sent may still be on its way.
            signal.signal(self.number, self._before if callable(self._before) else signal.SIG_IGN)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if not self._is_over:
            self.has_rung = True
            raise RewardTimeout


class _ByException:
    """An exception that the interpreter raises in this thread."""

    def __init__(self) -> None:
        self.has_rung = False
        self._is_over = False
        self._lock = threading.Lock()
        self._thread = ctypes.c_ulong(threading.get_ident())

    def ring(self) -> None:
        with self._lock:
            if not self._is_over:
                self.has_rung = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, ctypes.py_object(RewardTimeout))

    def put_away(self) -> None:
        with self._lock:
            self._is_over = True
            # What was rung while the block was ending, and has not been raised yet, is taken back.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, None)
