"""Row of a dataset, sequences of rows that are read on demand, and what every generator of rows does."""

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, overload

from paceline.errors import DataError

WHOLE = 20_000
"""Largest dataset that is read and tokenised whole before the first step: seconds, and half a gigabyte at most.

Of a larger one a sample is read then, and the other rows when they are taken.
"""
SAMPLE = 2_000  # Rows of a larger dataset that are read before the first step, spread evenly over it

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A row of a dataset, as it was read."""

    row_id: str
    """Unique within the dataset, counted from 1: `train.jsonl:17` is line 17 of that file."""
    columns: Mapping[str, object]
    """Column name to value, nothing renamed and nothing removed."""
    passed: Mapping[str, object] | None = None
    """Columns for reward functions instead of `columns`; None: `columns`, with None for those of other rows."""
    may_be_empty: bool = False
    """True: a message may have no text, as its environment adds to it."""
    unreadable: str | None = None
    """Reason why the place in the file holds no row, in a sentence, or None. Such a row has no columns."""

    @property
    def reward_columns(self) -> Mapping[str, object]:
        """Columns that reward functions get."""
        return self.columns if self.passed is None else self.passed


class Asked(Protocol):
    """What a generator draws."""

    @property
    def question(self) -> str:
        """Text of the task."""


GeneratedProblem = TypeVar("GeneratedProblem", bound=Asked)


def split_of(question: str) -> str:
    """Return the split that a generated question belongs to, `train` or `test`, by its text alone."""
    return "test" if hashlib.blake2b(question.encode(), digest_size=1).digest()[0] % 2 else "train"


def check_split(dataset: str, split: str) -> None:
    """Refuse a split other than the two that generators have.

    Raises:
        DataError: a split other than `train` and `test`.
    """
    if split not in ("train", "test"):
        raise DataError(f"dataset {dataset!r} has the splits 'train' and 'test', got {split!r}; use one of the two")


def drawn_once(dataset: str, split: str, draw: Callable[[], GeneratedProblem]) -> Iterator[GeneratedProblem]:
    """Yield what `draw` gives of one split, each question once; its text alone decides the split it is in.

    Raises:
        DataError: a split other than `train` and `test`.
    """
    check_split(dataset, split)

    def stream() -> Iterator[GeneratedProblem]:
        seen: set[str] = set()
        while True:
            problem = draw()
            question = problem.question
            if split_of(question) == split and question not in seen:
                seen.add(question)
                yield problem

    return stream()


class OnDemand(Sequence[Item_co]):
    """A sequence whose items are made on each access and not kept."""

    @abstractmethod
    def at(self, index: int) -> Item_co:
        """Make the item at 0 <= place < len(self)."""

    @overload
    def __getitem__(self, index: int) -> Item_co: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item_co]: ...
    def __getitem__(self, index: int | slice) -> Item_co | list[Item_co]:
        chosen = range(len(self))[index]
        return self.at(chosen) if isinstance(chosen, int) else [self.at(position) for position in chosen]


class RowsOnDemand(OnDemand[Row]):
    """Rows stored compactly elsewhere."""

    def digest(self) -> str:
        """Hash a sample of the rows, unless a source knows better."""
        return digest_of(spread(self, SAMPLE))


def spread(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most `most` items, evenly spread, the first among them."""
    return [items[index] for index in spread_places(len(items), most)]


def spread_places(size: int, most: int) -> list[int]:
    """Return the indices that `spread` takes from a sequence of `size` items."""
    count = min(most, size)
    return [index * size // count for index in range(count)]


def digest_of(rows: Sequence[Row]) -> str:
    """Hash the names and columns of rows in their order, or what rows on demand know to stand for them."""
    if isinstance(rows, RowsOnDemand):
        return rows.digest()
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps([row.row_id, dict(row.reward_columns)], sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()
