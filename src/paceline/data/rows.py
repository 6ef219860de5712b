"""Row of a dataset, sequences that are read on demand, the order in which rows are taken, and what generators share."""

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from paceline.data.pictures import Picture, is_pil
from paceline.errors import DataError
from paceline.types import Message

WHOLE = 20_000
"""Largest dataset that is read and tokenised whole before the first step: seconds, and half a gigabyte at most.

Of a larger one a sample is read then, and the other rows when they are taken.
"""
SAMPLE = 2_000  # Rows of a larger dataset that are read before the first step, spread evenly over it

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A row of a dataset."""

    row_id: str
    """Unique within the dataset, counted from 1: `train.jsonl:17` is line 17 of that file."""
    columns: Mapping[str, object]
    """Column name to value, nothing renamed and nothing removed."""
    prompt: str | list[Message] = ""
    """Text to be read as it is, or messages for the chat template; empty until `with_prompt` has read the columns."""
    answer: str | None = None
    """Gold answer, if the row has one; read with the prompt."""
    passed: Mapping[str, object] | None = None
    """Columns for reward functions instead of `columns`; None: `columns`, None where only other rows have one."""
    pictures: tuple[Picture, ...] = ()
    """Images of the prompt, in the order of its parts of type `image`; read with the prompt."""
    folder: Path | None = None
    """Directory that paths of images stand in, the data file's; None: the base of relative names."""
    may_be_empty: bool = False
    """True if a message may be empty, as its environment adds to it."""
    unreadable: str | None = None
    """Sentence why this line of the file is no row; None if it is one. An unreadable row has no columns."""

    @property
    def reward_columns(self) -> Mapping[str, object]:
        """Columns that reward functions get."""
        return self.columns if self.passed is None else self.passed


class HasQuestion(Protocol):
    """Problem that a generator draws."""

    @property
    def question(self) -> str:
        """Text of the task."""


GeneratedProblem = TypeVar("GeneratedProblem", bound=HasQuestion)


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
        """Hash a sample of the rows, unless a subclass has a better digest."""
        return digest_of(spread(self, SAMPLE))


def spread(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most `most` items, evenly spread, the first among them."""
    return [items[index] for index in spread_indices(len(items), most)]


def spread_indices(size: int, most: int) -> list[int]:
    """Return the indices that `spread` takes from a sequence of `size` items."""
    count = min(most, size)
    return [index * size // count for index in range(count)]


def digest_of(rows: Sequence[Row]) -> str:
    """Hash the names and columns of rows in their order; rows on demand have a digest of their own."""
    if isinstance(rows, RowsOnDemand):
        return rows.digest()
    digest = hashlib.sha256()
    for row in rows:
        content = [row.row_id, dict(row.reward_columns)]
        digest.update(json.dumps(content, sort_keys=True, default=_digested).encode() + b"\n")
    return digest.hexdigest()


def _digested(value: object) -> str:
    """Return a text for a value that JSON has no form for; that of an image would hold its address in memory."""
    if not is_pil(value):
        return str(value)
    image: Any = value
    return f"{image.mode} {image.size} {hashlib.sha256(image.tobytes()).hexdigest()}"


def task_index(position: int, *, size: int, seed: int, shuffle: bool) -> int:
    """Return the index in [0, size) of the task at `position`, counted from the start of the run.

    Positions run on through the epochs (epoch = position // size), and every epoch takes each task once. So a batch may
    span two epochs, and no remainder is left out. With `shuffle`, each epoch has an order of its own, fixed by `seed`.

    >>> [task_index(position, size=3, seed=0, shuffle=False) for position in range(5)]
    [0, 1, 2, 0, 1]

    Raises:
        ValueError: `position` < 0, `size` < 1, or a seed outside [0, 2^63).
    """
    if position < 0 or size < 1 or not 0 <= seed < 2**63:
        raise ValueError(f"position >= 0, size >= 1 and 0 <= seed < 2^63 must hold, got {position}, {size} and {seed}")
    epoch, offset = divmod(position, size)
    return int(_permutation(size, seed, epoch)[offset]) if shuffle else offset


def sample_indices(count: int, *, size: int, seed: int) -> NDArray[np.int64]:
    """Return the first `count` indices that `task_index` gives with `shuffle`; all come once before any repeats."""
    epochs = [_permutation(size, seed, epoch) for epoch in range(-(-count // size))]
    return np.concatenate(epochs)[:count].astype(np.int64)


# Two: a batch that spans two epochs must not compute them in turn.
@lru_cache(maxsize=2)
def _permutation(size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return all indices sorted by random keys: numpy keeps the raw Philox stream stable over releases, not
    `permutation`."""
    key = np.array([seed, epoch], dtype=np.uint64)
    return np.argsort(np.random.Philox(key=key).random_raw(size), kind="stable")
