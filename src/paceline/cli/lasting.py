"""Standard output and error that may go away: whoever read them has left, as `| head` does, and the work goes on."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class Lasting:
    """A text stream whose words go nowhere once its reader is gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, as long as somebody reads."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._to_nowhere()
            return len(text)

    def flush(self) -> None:
        """Flush, as long as somebody reads."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._to_nowhere()

    def _to_nowhere(self) -> None:
        # the descriptor itself: what the stream still holds is written at the end of the process, outside any `try`
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def lasting_output() -> Iterator[None]:
    """Both streams of this process, for as long as this lasts."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Lasting(before[0]), Lasting(before[1])  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before
