"""Rows of a large table in a file, each read when it is needed."""

import hashlib
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from paceline.data.rows import WHOLE, OnDemand, Row, RowsOnDemand
from paceline.errors import DataError

BATCH = 1024
"""Rows that are decoded at once: a row group can be the whole of a file."""


class TableRows(RowsOnDemand):
    """The first rows of a table whose items are mappings, such as a `datasets.Dataset`."""

    def __init__(self, table: Sequence[Mapping[str, object]], name: str, *, size: int) -> None:
        """Take `size` rows, named `name` and their number."""
        self._table, self._name, self._size = table, name, size

    def __len__(self) -> int:
        return self._size

    def at(self, place: int) -> Row:
        """Read one row."""
        return Row(row_id=f"{self._name}:{place + 1}", columns=self._table[place])


class ArrowRows(RowsOnDemand):
    """The first rows of a parquet file, decoded into a temporary file."""

    def __init__(self, path: Path, table: Any, *, size: int) -> None:
        """`table`: the rows of `path` as Arrow has them, in batches of any size."""
        self._path, self._table, self._size = path, table, size

    def __len__(self) -> int:
        return self._size

    def at(self, place: int) -> Row:
        """Read one row."""
        (columns,) = self._table.slice(place, 1).to_pylist()
        return Row(row_id=f"{self._path.name}:{place + 1}", columns=columns)

    def digest(self) -> str:
        """Hash the parquet file's bytes, its name and the number of rows that are taken."""
        with self._path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256")
        return hashlib.sha256(f"{self._path.name} {self._size} {content.hexdigest()}".encode()).hexdigest()


class ReadAhead(OnDemand[Mapping[str, Any]]):
    """Mappings of a stream in a temporary file; a key missing from one of its batch is None there."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Read all of them.

        Raises:
            DataError: one holds what a table has no form for.
        """
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - stays open as long as its rows
        self._starts, self._size = [0], 0
        stream = iter(rows)
        while batch := [*islice(stream, BATCH)]:
            self._file.write(_as_arrow(batch, self._size))
            self._starts.append(self._file.tell())
            self._size += len(batch)
        self._file.flush()

    def __len__(self) -> int:
        return self._size

    def at(self, place: int) -> Mapping[str, Any]:
        """Read one of them back."""
        from pyarrow import ipc

        batch, offset = divmod(place, BATCH)
        start, end = self._starts[batch], self._starts[batch + 1]
        table = ipc.open_stream(os.pread(self._file.fileno(), end - start, start)).read_all()
        (row,) = table.slice(offset, 1).to_pylist()
        found: Mapping[str, Any] = row
        return found


def read_ahead(rows: Iterable[Mapping[str, Any]], size: int | None) -> Sequence[Mapping[str, Any]]:
    """Read the first `size` items of a stream (None: all): a list of up to `WHOLE`, others in a temporary file."""
    stream = iter(rows)
    first = [*islice(stream, min(WHOLE + 1, size or WHOLE + 1))]
    rest = islice(stream, None if size is None else max(0, size - len(first)))
    return first if len(first) <= WHOLE else ReadAhead(chain(first, rest))


def _as_arrow(rows: Sequence[Mapping[str, Any]], before: int) -> bytes:
    import pyarrow
    from pyarrow import ipc

    names = dict.fromkeys(name for row in rows for name in row)
    sink = pyarrow.BufferOutputStream()
    try:
        batch = pyarrow.RecordBatch.from_pydict({name: [row.get(name) for row in rows] for name in names})
    except (pyarrow.ArrowException, TypeError) as error:
        raise DataError(
            f"rows {before + 1} to {before + len(rows)} of a stream cannot be read ahead into a table ({error}); give "
            "columns of one type each, or a datasets.Dataset or a list"
        ) from error
    with ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def parquet_rows(path: Path, *, size: int | None) -> ArrowRows:
    """Return the first `size` rows (None: all) of a parquet file.

    Raises:
        DataError: it is no such file.
    """
    # Imported here: a run on JSON lines must not wait for arrow.
    import pyarrow
    from pyarrow import ipc, parquet

    place, name = tempfile.mkstemp(suffix=".arrow")
    try:
        with parquet.ParquetFile(path) as file, os.fdopen(place, "wb") as decoded:
            # dictionary-encoded words may have other codes in the next batch
            schema = pyarrow.schema([field.with_type(_plain(field.type)) for field in file.schema_arrow])
            with ipc.new_file(decoded, schema) as writer:
                for batch in file.iter_batches(batch_size=BATCH):
                    writer.write_table(pyarrow.Table.from_batches([batch]).cast(schema))
        table = ipc.open_file(pyarrow.memory_map(name)).read_all()
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: is not a parquet file that can be read ({error}); write it again") from error
    finally:
        os.unlink(name)  # the mapping outlives the name
    return ArrowRows(path, table, size=table.num_rows if size is None else min(size, table.num_rows))


def _plain(kind: Any) -> Any:
    import pyarrow

    return kind.value_type if pyarrow.types.is_dictionary(kind) else kind
