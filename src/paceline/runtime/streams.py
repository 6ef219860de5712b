"""Text for output streams that cannot encode all characters, such as ASCII's and Latin-1's."""

from typing import TextIO

SIMILAR = str.maketrans(
    dict(zip("▏▎▍▌▋▊▉█▁▂▃▄▅▆▇━╸─·", "....####_.-=+*@=---", strict=True))
    | {"…": "...", "±": "+-", "→": "->", "\N{MULTIPLICATION SIGN}": "x", "≤": "<=", "≥": ">=", "\N{EN DASH}": "-"}
)
"""ASCII for characters of bars, curves and formulas."""


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
