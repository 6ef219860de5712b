"""The gold answer inside the text that a dataset gives for it."""

import math

from paceline.data.extraction.boxes import last_boxed
from paceline.data.extraction.hashes import closing_hashes
from paceline.errors import DataError


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
    return (closing_hashes(text) or last_boxed(text) or text.strip()) or None
