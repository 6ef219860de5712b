"""Text for a terminal and other output streams.

Control characters in text of models, data, files and servers are escaped, so that it moves no cursor and hides no word;
characters that a stream's encoding lacks, such as ASCII's and Latin-1's, are replaced.
"""

import re
import sys
from typing import Any, TextIO

STEERING = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)"
)
"""Control characters except tabs and line ends, marks of text direction, lone surrogates."""
SIMILAR = str.maketrans(
    dict(zip("▏▎▍▌▋▊▉█▁▂▃▄▅▆▇━╸─·", "....####_.-=+*@=---", strict=True))
    | {"…": "...", "±": "+-", "→": "->", "\N{MULTIPLICATION SIGN}": "x", "≤": "<=", "≥": ">=", "\N{EN DASH}": "-"}
)
"""ASCII for characters of bars, curves and formulas."""


def visible(text: str) -> str:
    r"""Escape control characters, those that JSON may hold in JSON's form.

    >>> visible("a\x1b[31mb\tc\r\n")
    'a\\x1b[31mb\tc\r\n'
    """
    return STEERING.sub(lambda char: f"\\x{ord(char[0]):02x}" if char[0] < " " else f"\\u{ord(char[0]):04x}", text)


def encodable(text: str, stream: TextIO) -> str:
    """The text with a similar character, or `?`, for each that the stream's encoding lacks.

    >>> import io
    >>> encodable("0.5 → ü ▁█", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    '0.5 -> ü _#'
    """
    if not getattr(stream, "encoding", None):  # a stream in memory
        return text
    if _is_encodable(text, stream):
        return text
    parts = (part if _is_encodable(part, stream) else part.translate(SIMILAR) for part in text)
    return "".join(part if _is_encodable(part, stream) else "?" for part in parts)


def _is_encodable(text: str, stream: TextIO) -> bool:
    try:
        text.encode(stream.encoding, stream.errors or "strict")
    except UnicodeEncodeError:
        return False
    return True


class OwnOutput:
    """The present standard output or error, for text whose control characters are this program's own."""

    def __init__(self, name: str) -> None:
        """`name`: `stdout` or `stderr`."""
        self._name = name

    def write(self, text: str) -> int:
        """Write unescaped, past a stream that escapes control characters."""
        stream = self._stream
        written: int = getattr(stream, "write_own", stream.write)(encodable(text, stream))
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def _stream(self) -> Any:
        stream = getattr(sys, self._name)
        return getattr(stream, "rich_proxied_file", stream)  # a live display puts another one before it
