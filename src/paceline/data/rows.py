"""The record that every source gives, one row of a dataset, and rows that are read when they are needed."""

import hashlib
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, overload

WHOLE = 20_000
"""Rows of a dataset that is read and tokenised whole before the first step: seconds, and half a gigabyte at most.

Of a larger one a sample is, and the others are read when they are taken."""
SAMPLE = 2_000
"""Rows of a larger dataset that are looked at before the first step, spread evenly over it."""

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of a dataset, as it was read."""

    row_id: str
    """Unique within the dataset, counted from 1: `train.jsonl:17` is line 17 of that file."""
    columns: Mapping[str, object]
    """Column name to value, nothing renamed and nothing removed."""
    passed: Mapping[str, object] | None = None
    """What reward functions get in the place of `columns`; None: those, and None for those of other rows."""
    unreadable: str | None = None
    """Why the place in the file holds no row, in a sentence; None: it does. Such a row has no columns."""

    @property
    def given(self) -> Mapping[str, object]:
        """The columns that reward functions get."""
        return self.columns if self.passed is None else self.passed


class OnDemand(Sequence[Item_co]):
    """A sequence whose items are made each time that they are asked for, and not kept."""

    @abstractmethod
    def at(self, place: int) -> Item_co:
        """Make the item at 0 <= place < len(self)."""

    @overload
    def __getitem__(self, index: int) -> Item_co: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item_co]: ...
    def __getitem__(self, index: int | slice) -> Item_co | list[Item_co]:
        places = range(len(self))[index]
        return self.at(places) if isinstance(places, int) else [self.at(place) for place in places]


class RowsOnDemand(OnDemand[Row]):
    """Rows that lie somewhere compactly."""

    def digest(self) -> str:
        """A hash by which the rows are known again: of a sample of them, unless a source knows better."""
        return rows_digest(spread(self, SAMPLE))


def spread(items: Sequence[Item], most: int) -> list[Item]:
    """At most so many items, evenly spread, the first among them."""
    return [items[place] for place in spread_places(len(items), most)]


def spread_places(size: int, most: int) -> list[int]:
    """The places of `spread` in a sequence of `size` items."""
    count = min(most, size)
    return [index * size // count for index in range(count)]


def rows_digest(rows: Sequence[Row]) -> str:
    """A hash of the names and columns of these rows, in their order."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps([row.row_id, dict(row.given)], sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()
