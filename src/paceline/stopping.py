"""The outside world's wish to stop: SIGINT and SIGTERM become a flag that a loop reads between two steps."""

import signal
from types import FrameType


class StopRequest:
    """Within `with`, a first signal is remembered; a second one interrupts at once."""

    def __init__(self) -> None:
        self.received: str | None = None
        """Name of the signal that came, None before."""

    def __enter__(self) -> "StopRequest":
        self._previous = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name
