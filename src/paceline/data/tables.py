"""Rows of tables: of a CSV file, through the `datasets` library, or of a stream; large ones are read on demand."""

import csv
import gzip
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from paceline.base_directory import local_path
from paceline.data.row_images import IMAGE_COLUMNS
from paceline.data.rows import WHOLE, OnDemand, Row, RowsOnDemand
from paceline.errors import DataError, first_line

if TYPE_CHECKING:
    from datasets import Dataset


LONGEST_CELL = 1 << 30  # Characters of a cell of CSV, at most: Python's own limit is below that of a row's test cases
UNNAMED = "Unnamed: 0"
"""Name that pandas gives a first column without one."""
BATCH = 1024  # Rows of a table that are decoded at once: a row group can be the whole of a file

Columns = dict[str, object]
NumberedColumns = Iterator[tuple[int, Columns | DataError]]
"""Line or item numbers, each with its columns or the error of an unreadable one."""


def is_packed(path: Path) -> bool:
    """Return True for a file that gzip has packed, by its name."""
    return path.name.lower().endswith(".gz")


def csv_rows(path: Path) -> NumberedColumns:
    """Rows below the header, numbered from 1, whose cells are texts."""
    with _text_of(path) as stream:
        number, rows = 0, csv.reader([])
        csv.field_size_limit(LONGEST_CELL)
        try:
            first, separator = _start(stream)
            separator = separator or _separator(path, first)
            # `question, "answer"`: the blank behind each comma belongs to no cell
            is_spaced = f"{separator} " in _unquoted(first)
            lines = chain([first], stream)
            rows = csv.reader(lines, delimiter=separator, skipinitialspace=is_spaced, strict=True)
            header = _named(next((row for row in rows if row), []))
            _check_header(path, header)
            for number, cells in enumerate(filter(None, rows), start=1):
                if len(cells) >= len(header) and not any(cells[len(header) :]):
                    yield number, dict(zip(header, cells, strict=False))
                    continue
                yield (
                    number,
                    DataError(
                        f"{path}, row {number} (up to line {rows.line_num}): has {len(cells)} cells where the header "
                        f"names {len(header)} columns; put a text with commas or line breaks in double quotes"
                    ),
                )
        except UnicodeDecodeError as error:
            raise DataError(f"{path}, behind row {number}: is not UTF-8 text; save the file as CSV UTF-8") from error
        except csv.Error as error:
            raise DataError(
                f"{path}, line {rows.line_num}: is not CSV ({error}); double quotes enclose a cell, and two of them "
                "stand for one in it"
            ) from error


def _text_of(path: Path) -> TextIO:
    if is_packed(path):
        return cast(TextIO, gzip.open(path, "rt", encoding="utf-8-sig", newline=""))
    return path.open(encoding="utf-8-sig", newline="")


def _start(stream: TextIO) -> tuple[str, str | None]:
    """Return the first line that is not blank, or an empty text, and the mark that Excel's `sep=;` before it names."""
    lines = (line for line in stream if line.strip())
    first = next(lines, "")
    named = _SEPARATOR_LINE.fullmatch(first)
    return (first, None) if named is None else (next(lines, ""), named[1])


_SEPARATOR_LINE = re.compile(r'"?sep=([^\w\s"]|\t)"?\s*', re.IGNORECASE)


def _unquoted(line: str) -> str:
    return re.sub(r'"[^"]*"', "", line)


def _separator(path: Path, header: str) -> str:
    """Return what separates the cells of a file with this header: a comma, or one of the marks it has instead.

    Of several marks it is the one that cuts header and first row into as many cells, and into the most.
    """
    marks = [mark for mark in ",;\t" if mark in _unquoted(header)] or [","]
    return marks[0] if len(marks) == 1 else max(marks, key=lambda mark: _fitting_cells(path, mark))


def _fitting_cells(path: Path, mark: str) -> int:
    """Return the number of cells that header and first row of a file have alike with this separator, else 0."""
    with _text_of(path) as stream:
        first, _ = _start(stream)
        try:
            header, *row = islice(filter(None, csv.reader(chain([first], stream), delimiter=mark, strict=True)), 2)
        except csv.Error:
            return 0
    return len(header) if row and len(row[0]) == len(header) else 0


def _named(header: list[str]) -> list[str]:
    """Return the names of columns, without nameless ones at the end, which a separator behind each line makes.

    pandas writes the number of a row into a first column without a name.
    """
    names = [name.strip() for name in header]
    while len(names) > 1 and not names[-1]:
        names.pop()
    return [UNNAMED, *names[1:]] if len(names) > 1 and not names[0] else names


def _check_header(path: Path, header: list[str]) -> None:
    if len({*header}) != len(header) or (header and not all(map(str.strip, header))):
        raise DataError(
            f"{path}: its first line must name each column once, got {', '.join(map(repr, header))}; mend it"
        )


def csv_batches(path: Path, unreadable: dict[int, DataError]) -> tuple[Any, Iterator[Any]]:
    """Schema and tables of a CSV file; `unreadable` gets the error of each unreadable row, by index."""
    import pyarrow

    rows = csv_rows(path)
    first = next((columns for _, columns in csv_rows(path) if not isinstance(columns, DataError)), None)
    if first is None:
        raise DataError(f"{path}: no row has as many cells as its header names columns; put texts in double quotes")
    schema = pyarrow.schema([(name, pyarrow.string()) for name in first])

    def tables() -> Iterator[Any]:
        while some := list(islice(rows, BATCH)):
            unreadable.update({number - 1: why for number, why in some if isinstance(why, DataError)})
            yield pyarrow.Table.from_pylist(
                [{} if isinstance(columns, DataError) else columns for _, columns in some], schema=schema
            )

    return schema, tables()


class TableRows(RowsOnDemand):
    """The first rows of a table whose items are mappings, such as a `datasets.Dataset`."""

    def __init__(
        self, table: Sequence[Mapping[str, object]], name: str, *, size: int, folder: Path | None = None
    ) -> None:
        """Take `size` rows, named `name` and their number; paths of images stand in `folder`."""
        self._table, self._name, self._size, self._folder = table, name, size, folder

    def __len__(self) -> int:
        return self._size

    def at(self, index: int) -> Row:
        """Read one row."""
        return Row(row_id=f"{self._name}:{index + 1}", columns=self._table[index], folder=self._folder)


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
    name, directory = f"{Path(dataset).name}/{split}", local_path(dataset)
    folder = directory if directory.is_dir() else None
    table = undecoded(table)
    if count > WHOLE:
        return TableRows(cast(Sequence[Mapping[str, object]], table), name, size=count, folder=folder)
    numbered = enumerate(table.select(range(count)), start=1)
    return [Row(row_id=f"{name}:{number}", columns=columns, folder=folder) for number, columns in numbered]


def undecoded(table: "Dataset") -> "Dataset":
    """Return a table whose columns of images give the bytes of their files, which are decoded once and kept as such."""
    from datasets import Image, List

    features = dict[str, Any]()
    for name in table.features.keys() & IMAGE_COLUMNS:
        if isinstance(table.features[name], Image):
            features[name] = Image(decode=False)
        elif isinstance(table.features[name], List) and isinstance(table.features[name].feature, Image):
            features[name] = List(Image(decode=False))
    for name, feature in features.items():
        table = table.cast_column(name, feature)
    return table


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
