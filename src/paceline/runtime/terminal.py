"""Text for a terminal: whatever models, data, files and servers say, it moves no cursor and hides no word."""

import re
import sys
from typing import Any

from paceline.runtime.streams import encodable

STEERING = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)"
)
"""Controls of a terminal but tabs and ends of lines, marks that turn the direction of reading, halves of characters."""


def visible(text: str) -> str:
    r"""Write characters that would steer a terminal as escapes, those that JSON may hold in JSON's own form.

    >>> visible("a\x1b[31mb\tc\r\n")
    'a\\x1b[31mb\tc\r\n'
    """
    return STEERING.sub(lambda found: f"\\x{ord(found[0]):02x}" if found[0] < " " else f"\\u{ord(found[0]):04x}", text)


class OwnOutput:
    """Standard output or error, whichever it is at the time, for text in which only this program steers."""

    def __init__(self, name: str) -> None:
        """`name`: `stdout` or `stderr`."""
        self._name = name

    def write(self, text: str) -> int:
        """Write as it is, past a stream that makes text visible."""
        stream = self._stream
        written: int = getattr(stream, "write_own", stream.write)(encodable(text, stream))
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def _stream(self) -> Any:
        stream = getattr(sys, self._name)
        return getattr(stream, "rich_proxied_file", stream)  # a live display puts another one before it
