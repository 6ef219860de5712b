"""Join several datasets, with as many rows of each as `#N` behind its address says."""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.data.order import sample_places
from paceline.data.rows import WHOLE, Row, RowsOnDemand, rows_digest


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetPart:
    """The rows that are taken of one dataset."""

    rows: Sequence[Row]
    places: NDArray[np.int64]
    """Places in the order in which they are taken; a repeated place is another row, named `...#2`."""
    prefix: str
    """Prefix of its rows' names, if another dataset's may be the same."""

    def row(self, at: int) -> Row:
        """Return the row that is taken at `at`, counted from 0."""
        row, times = self.rows[int(self.places[at])], at // len(self.rows)
        name = f"{self.prefix}{row.row_id}" + (f"#{times + 1}" if times else "")
        return row if name == row.row_id else dataclasses.replace(row, row_id=name)


class JoinedRows(RowsOnDemand):
    """The rows of several datasets, one after the other."""

    def __init__(self, parts: Sequence[DatasetPart]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part.places) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def at(self, place: int) -> Row:
        """Read one row."""
        number = int(np.searchsorted(self._ends, place, side="right"))
        return self._parts[number].row(place - (int(self._ends[number - 1]) if number else 0))

    def digest(self) -> str:
        """Hash each dataset's digest and the places of its rows."""
        digest = hashlib.sha256()
        for part in self._parts:
            of_rows = part.rows.digest() if isinstance(part.rows, RowsOnDemand) else rows_digest(part.rows)
            digest.update(f"{part.prefix} {of_rows} ".encode() + part.places.tobytes())
        return digest.hexdigest()


def join(found: Sequence[tuple[str, Sequence[Row], int | None]], *, size: int | None, seed: int) -> Sequence[Row]:
    """Return the first `size` rows (None: all) of these datasets, given by address, rows and number of rows to take.

    None takes all in their order. A count draws rows by `seed`: each at most once, or where there are fewer all of them
    as often as it takes.
    """
    called = Counter(Path(address).name for address, _, _ in found)
    parts = [
        DatasetPart(
            rows=rows,
            places=np.arange(len(rows)) if count is None else sample_places(count, size=len(rows), seed=seed),
            prefix=f"{number}/" if called[Path(address).name] > 1 else "",
        )
        for number, (address, rows, count) in enumerate(found, start=1)
    ]
    joined = JoinedRows(parts)
    most = len(joined) if size is None else min(size, len(joined))
    return joined[:most] if most <= WHOLE or most < len(joined) else joined
