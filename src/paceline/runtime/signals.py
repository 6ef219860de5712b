"""Signals to stop (SIGINT, SIGTERM, SIGHUP) as a flag that a loop reads between two steps."""

import signal
import threading
from types import FrameType

STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
ALARM = signal.SIGRTMIN + 9 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""Signal that wakes the main thread when the grace period is over. SIGALRM may be a reward function's, and the number
below is the watchdog's."""


class GraceOver(KeyboardInterrupt):
    """End of the grace period before the current step was done."""


class StopRequest:
    """Context manager that remembers a first signal to stop. A second one interrupts at once, and so does the end of
    the grace period.

    A signal that `nohup` ignores stays ignored.
    """

    def __init__(self, grace: float = 0.0) -> None:
        """`grace`: seconds that the block may continue after the first signal; 0: without limit."""
        self.received: str | None = None
        """Name of the received signal, or None."""
        self._grace = grace
        self._over = threading.Event()

    def __enter__(self) -> "StopRequest":
        heeded = [number for number in STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
        self._previous = {number: signal.signal(number, self._note) for number in heeded}
        if self._grace:
            self._previous[ALARM] = signal.signal(ALARM, self._ring)
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        for number, handler in self._previous.items():
            # never the alarm's default action, which ends the process: the signal may still be on its way
            signal.signal(number, signal.SIG_IGN if number == ALARM and not callable(handler) else handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name
        if self._grace:
            threading.Thread(target=self._wait, name="grace", daemon=True).start()

    def _wait(self) -> None:
        if not self._over.wait(self._grace):
            signal.pthread_kill(threading.main_thread().ident or 0, ALARM)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if not self._over.is_set():
            raise GraceOver(f"{self.received}: the step in hand did not end within {self._grace:g} s (--stop-grace)")
