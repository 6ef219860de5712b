"""Text that people see: secrets are hidden, and it can be written to a terminal and other output streams.

Control characters in text of models, data, files and servers are escaped, so that it moves no cursor and hides no word;
characters that a stream's encoding lacks, such as ASCII's and Latin-1's, are replaced.
"""

import os
import re
import sys
from typing import Any, TextIO

LEAST_LENGTH = 8
"""Characters of the shortest value that counts as a secret: a shorter one, such as `false`, is part of other words."""
_NAMED = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_ADDRESS = re.compile(r"(?<=://)(?:[^\s'\"<>]|['\"<>](?=\w))+")
"""Rest of an address after its scheme, up to a space or a closing quote; a password may contain `/` and `@`."""
_NAME = (
    r"(?:authorization|api[-_]?key|cookie|(?:access|auth|id|private|refresh|security|session)[-_]token"
    r"|x-(?:[a-z]{1,20}-){0,3}(?:key|secret|token))"
)
_QUOTED = re.compile(
    rf"({_NAME}(?:\\?['\"])?\s*[:=,]\s*b?(\\?['\"]))(?:(?!\2).)+|((['\"])[a-z-]{{0,40}}{_NAME}\s*:)(?:(?!\4).)+",
    re.IGNORECASE,
)
"""A name and a value in quotes, or both in the same ones, as in a dictionary and on a command line."""
_HEADER = re.compile(rf"({_NAME}(?:\\?['\"])?\s*:\s*)(?!b?\\?['\"]|[(\s])[^\r\n]+", re.IGNORECASE)
_ASSIGNED = re.compile(rf"({_NAME}\s*[=,]\s*)(?!b?\\?['\"]|[(\s])[^\s'\"\\,;)}}\]]+", re.IGNORECASE)
_SCHEME = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)


def hidden(text: str) -> str:
    """Return a text with its secrets replaced: values of this process's environment variables whose names have KEY,
    TOKEN, SECRET, PASSWORD or CREDENTIAL in them, user, query and fragment of addresses, and values of headers that
    authorise, to the end of their line or quotes.

    >>> hidden("403 from https://me:pw@judge.org/ask?api_key=1234#top, Authorization: Bearer abcdef")
    '403 from https://(hidden)@judge.org/ask?(hidden), Authorization: (hidden)'
    """
    for name, value in _values():
        text = text.replace(value, f"({name})")
    text = _QUOTED.sub(lambda match: f"{match[1] or f'{match[3]} '}(hidden)", _ADDRESS.sub(_host_and_path, text))
    return _SCHEME.sub(r"\1 (hidden)", _ASSIGNED.sub(r"\1(hidden)", _HEADER.sub(r"\1(hidden)", text)))


def _host_and_path(address: re.Match[str]) -> str:
    """Return host and path of an address, as far as they can be told from what may be secret."""
    text = address[0].rstrip(".,;:")
    user, at, rest = text.rpartition("@")
    if "?" in user or "#" in user:  # of a query or a password: where the host begins, nobody can say
        at, rest = "", "(hidden)"
    else:
        rest = re.sub(r"([?#]).+", r"\1(hidden)", rest)
    return f"{'(hidden)@' * bool(at)}{rest}{address[0][len(text) :]}"


def _values() -> list[tuple[str, str]]:
    """Return names and values of variables that hold secrets, the longest value first: one may be part of another.

    Each line of a value counts, as of a private key, for what is printed may be cut into lines.
    """
    by_value = {
        line.strip(): name
        for name, value in os.environ.items()
        if _NAMED.search(name)
        for line in value.splitlines()
        if len(line.strip()) >= LEAST_LENGTH
    }
    return [(by_value[value], value) for value in sorted(by_value, key=len, reverse=True)]


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
