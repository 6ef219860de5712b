"""The gold answer inside the text that a dataset gives for it."""

import math
import re

from paceline.errors import DataError

BOXED = re.compile(r"\\f?boxed\s*\{")


def gold_answer(value: object, *, row_id: str, column: str) -> str | None:
    """The final answer that a cell states; None for an empty cell.

    A number becomes its text. Of a text with a last line `#### 72` (GSM8K) it is what follows the last `####`; else the
    content of its last complete \\boxed{...}, where there is one; else the whole text. Outer space is stripped, nothing
    else is changed: `1,000` stays `1,000`.

    Raises:
        DataError: the cell is neither text nor a finite number.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise DataError(
            f"row {row_id}: column {column!r} holds {value}, but an answer must be text or a finite number; "
            "leave the cell empty (null) where there is none"
        )
    if isinstance(value, int | float):
        return str(value)
    if value is not None and not isinstance(value, str):
        raise DataError(
            f"row {row_id}: column {column!r} holds a {type(value).__name__}, but an answer must be text or a number; "
            "name the right column with --answer-column"
        )
    text = value or ""
    return (after_hashes(text) or last_boxed(text) or text.strip()) or None


def after_hashes(text: str) -> str | None:
    """What follows the last `####`, when that is the start of the last line.

    >>> after_hashes("3 * 4 = <<3*4=12>>12\\n#### 12 ")
    '12'
    """
    last_line = text.strip().rpartition("\n")[2].strip()
    return last_line.removeprefix("####").strip() or None if last_line.startswith("####") else None


def last_boxed(text: str) -> str | None:
    r"""The content of the last \boxed{...} whose braces close, escaped braces (\{) left aside.

    >>> last_boxed(r"so \boxed{1} or rather \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    for start in reversed([match.end() for match in BOXED.finditer(text)]):
        content = _until_closed(text, start)
        if content is not None:
            return content.strip() or None
    return None


def _until_closed(text: str, start: int) -> str | None:
    depth = 1
    for brace in re.finditer(r"\\.|[{}]", text[start:]):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return text[start : start + brace.start()]
    return None
