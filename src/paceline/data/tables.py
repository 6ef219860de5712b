"""Rows of tables, through the `datasets` library or of a stream; those of a large one are read when they are needed."""

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from paceline.base_directory import local_path
from paceline.data.csv_rows import BATCH
from paceline.data.rows import WHOLE, OnDemand, Row, RowsOnDemand
from paceline.errors import DataError, first_line

if TYPE_CHECKING:
    from datasets import Dataset


class TableRows(RowsOnDemand):
    """The first rows of a table whose items are mappings, such as a `datasets.Dataset`."""

    def __init__(self, table: Sequence[Mapping[str, object]], name: str, *, size: int) -> None:
        """Take `size` rows, named `name` and their number."""
        self._table, self._name, self._size = table, name, size

    def __len__(self) -> int:
        return self._size

    def at(self, index: int) -> Row:
        """Read one row."""
        return Row(row_id=f"{self._name}:{index + 1}", columns=self._table[index])


def read_split(dataset: str, *, split: str, size: int | None) -> Sequence[Row]:
    """Return the first `size` rows (None: all) of one split of a directory, `org/name` or `org/name:config`.

    Above `WHOLE` rows each is read when it is needed.

    Raises:
        DataError: the dataset cannot be loaded, has no such split, or the split is empty.
    """
    splits = _load(dataset)
    if split not in splits:
        have = ", ".join(splits) or "none"
        raise DataError(
            f"--dataset {dataset}: has no split {split!r}; its splits: {have} (--dataset-split, --eval-split)"
        )
    table = splits[split]
    count = len(table) if size is None else min(size, len(table))
    if count == 0:
        raise DataError(f"--dataset {dataset}: split {split!r} holds no rows; give a split with at least one")
    name = f"{Path(dataset).name}/{split}"
    if count > WHOLE:
        return TableRows(cast(Sequence[Mapping[str, object]], table), name, size=count)
    numbered = enumerate(table.select(range(count)), start=1)
    return [Row(row_id=f"{name}:{number}", columns=columns) for number, columns in numbered]


def split_names(dataset: str) -> tuple[str, ...]:
    """Return the splits of a directory or Hub dataset; raise a DataError if it cannot be loaded."""
    return tuple(_load(dataset))


def _load(dataset: str) -> Mapping[str, "Dataset"]:
    # Imported here: `datasets` takes seconds to import, and most runs do without.
    from datasets import Dataset, load_dataset, load_from_disk
    from datasets.exceptions import DatasetsError

    directory = local_path(dataset)
    try:
        with _bars_on_a_terminal_only():
            # What `save_to_disk` wrote: `load_dataset` would take its bookkeeping files for rows.
            if directory.is_dir() and any((directory / name).exists() for name in ("dataset_dict.json", "state.json")):
                saved = load_from_disk(str(directory))
                return {"train": saved} if isinstance(saved, Dataset) else cast(Mapping[str, "Dataset"], saved)
            if directory.is_dir():
                return cast(Mapping[str, "Dataset"], load_dataset(str(directory)))
            path, _, config = dataset.partition(":")
            return cast(Mapping[str, "Dataset"], load_dataset(path, config or None))
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        raise DataError(f"--dataset {dataset}: cannot be loaded: {first_line(error)}") from error


@contextmanager
def _bars_on_a_terminal_only() -> Iterator[None]:
    """Keep the bars of `datasets` out of a file, unless its variable HF_DATASETS_DISABLE_PROGRESS_BARS decides."""
    from datasets.config import HF_DATASETS_DISABLE_PROGRESS_BARS
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if sys.stderr.isatty() or are_progress_bars_disabled() or HF_DATASETS_DISABLE_PROGRESS_BARS is not None:
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


class ReadAhead(OnDemand[Mapping[str, Any]]):
    """Mappings of a stream in a temporary file; a key missing from one of its batch is None there."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Read all of them.

        Raises:
            DataError: one holds what a table has no form for.
        """
        import pyarrow
        from pyarrow import ipc

        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - stays open as long as its rows
        self._starts, self._size = [0], 0
        stream = iter(rows)
        while items := [*islice(stream, BATCH)]:
            names = dict.fromkeys(name for item in items for name in item)
            sink = pyarrow.BufferOutputStream()
            try:
                batch = pyarrow.RecordBatch.from_pydict({name: [item.get(name) for item in items] for name in names})
            except (pyarrow.ArrowException, TypeError) as error:
                raise DataError(
                    f"rows {self._size + 1} to {self._size + len(items)} of a stream cannot be read ahead into a table "
                    f"({error}); give columns of one type each, or a datasets.Dataset or a list"
                ) from error
            with ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            self._file.write(sink.getvalue())
            self._starts.append(self._file.tell())
            self._size += len(items)
        self._file.flush()

    def __len__(self) -> int:
        return self._size

    def at(self, index: int) -> Mapping[str, Any]:
        """Read one of them back."""
        from pyarrow import ipc

        batch, offset = divmod(index, BATCH)
        start, end = self._starts[batch], self._starts[batch + 1]
        table = ipc.open_stream(os.pread(self._file.fileno(), end - start, start)).read_all()
        (row,) = cast(list[Mapping[str, Any]], table.slice(offset, 1).to_pylist())
        return row


def read_ahead(rows: Iterable[Mapping[str, Any]], size: int | None) -> Sequence[Mapping[str, Any]]:
    """Read the first `size` items of a stream (None: all): a list of up to `WHOLE`, others in a temporary file."""
    stream = iter(rows)
    first = [*islice(stream, min(WHOLE + 1, size or WHOLE + 1))]
    rest = islice(stream, None if size is None else max(0, size - len(first)))
    return first if len(first) <= WHOLE else ReadAhead(chain(first, rest))
