"""The last lines that an episode's process has printed, as they are recorded and shown."""

import os
import select

from paceline.runtime.secrets import hidden

MOST_KEPT = 1 << 13
"""Bytes of what a process has printed that are kept: the last ones."""
MOST_LINES, MOST_LINE = 20, 500
"""Lines that are shown, and characters of each."""
PIPE_BYTES = 1 << 16


class Tail:
    """The end of what is written into a pipe, read as it comes: who writes never waits for long."""

    def __init__(self) -> None:
        self.reads, self.writes = os.pipe()
        """Descriptors of both ends."""
        os.set_blocking(self.reads, False)
        self._kept, self._is_cut = b"", False

    def read(self) -> bool:
        """Read what there is, at most what a pipe holds; returns False at its end."""
        try:
            data = os.read(self.reads, PIPE_BYTES)
        except BlockingIOError:
            return True
        whole = self._kept + data
        self._is_cut = self._is_cut or len(whole) > MOST_KEPT
        self._kept = whole[-MOST_KEPT:]
        return bool(data)

    def close(self) -> str:
        """Read the rest that is in the pipe, close it, and return the end of what was written, from a line's start."""
        while select.select([self.reads], [], [], 0)[0] and self.read():
            pass
        os.close(self.reads)
        kept = self._kept.partition(b"\n")[2] if self._is_cut and b"\n" in self._kept else self._kept
        return hidden(kept.decode(errors="backslashreplace"))


def printed_lines(text: str) -> tuple[str, ...]:
    r"""Return the last lines of a text, without secrets; of a line that was written over, what stood there at last.

    Control characters are written as their escapes: what is recorded is shown in terminals too.

    >>> printed_lines("10 %\r20 %\n\x1b[31mred\n\n")
    ('20 %', '\\x1b[31mred')
    """
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in hidden(text).split("\n")]
    shown = ["".join(map(_escaped, line.rstrip())) for line in lines if line.strip()]
    return tuple(line if len(line) <= MOST_LINE else f"{line[:MOST_LINE]}..." for line in shown[-MOST_LINES:])


def _escaped(character: str) -> str:
    if character.isprintable() or character == "\t":
        return character
    return character.encode("unicode_escape", "surrogatepass").decode()
