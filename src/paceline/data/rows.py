"""The record that every source gives: one row of a dataset, whatever it was read from."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of a dataset, as it was read."""

    row_id: str
    """Unique within the dataset, counted from 1: `train.jsonl:17` is line 17 of that file."""
    columns: Mapping[str, object]
    """Column name to value, nothing renamed and nothing removed."""
    unreadable: str | None = None
    """Why the place in the file holds no row, in a sentence; None: it does. Such a row has no columns."""
