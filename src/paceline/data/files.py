"""Rows of one file: JSON lines, a JSON list, CSV, or parquet. A file is one split; a large one is read on demand.

Of large JSON lines the start of each line is kept, and a line is read when its row is needed. A large table, parquet or
CSV, is decoded into a temporary file.
"""

import codecs
import gzip
import hashlib
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from paceline.data.rows import WHOLE, Row, RowsOnDemand
from paceline.data.tables import BATCH, Columns, NumberedColumns, csv_batches, csv_rows, is_packed
from paceline.errors import DataError

JSON_LINES = (".jsonl", ".ndjson")
PACKABLE = (*JSON_LINES, ".json", ".csv")  # Endings that `.gz` may follow
TABLES = (".csv", ".parquet")
READABLE = (*PACKABLE, ".parquet")
CHUNK = 1 << 24
NEWLINE = ord("\n")
BLANKS = np.frombuffer(b" \t\r\n\v\f", dtype=np.uint8)


def read_file(path: Path, *, size: int | None, named: str | None = None) -> Sequence[Row]:
    """Return the first `size` rows of a file (None: all); above `WHOLE` rows, lines and tables are read on demand.

    The ending tells the format. `.jsonl` and `.ndjson` hold one object per line, `.json` a list of objects or lines,
    `.csv` and `.parquet` a table; `.gz` may follow all but the last. Text is UTF-8, with or without a byte order mark;
    blank lines are no rows. A line that is not UTF-8, not JSON or no object is an unreadable row, as is one of a CSV
    file that has not a cell for each column. Every cell of CSV is a text, numbers too. `named` is the file's name in
    errors.

    Raises:
        DataError: another ending, an unreadable or empty file, or a list of JSON or a table that cannot be read.
    """
    kind, label = data_ending(path), named or path
    if kind not in READABLE:
        how = (
            f"save it as CSV from the program that made it, or convert it: "
            f'python -c "import pandas; pandas.read_excel({path.name!r}).to_csv({path.stem + ".csv"!r}, index=False)"'
            if kind in (".xlsx", ".xls", ".ods")
            else "convert it"
        )
        raise DataError(f"--dataset {label}: a file must end in one of {', '.join(READABLE)} (or .jsonl.gz); {how}")
    try:
        is_list = False
        if kind == ".json":
            with _opened(path) as stream:
                first = next((line for line in stream if line.removeprefix(codecs.BOM_UTF8).strip()), b"")
            is_list = first.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")
        read = {".parquet": _parquet, ".csv": csv_rows}.get(kind, _listed if is_list else _lines)
        numbered = read(path)
        most = size if is_list else min(WHOLE + 1, size or WHOLE + 1)
        rows: Sequence[Row] = [_row(path, number, columns) for number, columns in islice(numbered, most)]
        if len(rows) > WHOLE and not is_list:
            rows = _on_demand(path, size, path.stat().st_mtime_ns)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"--dataset {label}: cannot be read ({error}); check the file and its permissions") from error
    if not rows:
        raise DataError(f"--dataset {label}: holds no rows; give a file with at least one")
    return rows


def data_ending(path: Path) -> str:
    """Return the ending that tells a file's format, in lower case, without a `.gz` behind it."""
    name = path.name.lower()
    plain = Path(name.removesuffix(".gz")).suffix
    return plain if plain in PACKABLE else Path(name).suffix


class LineRows(RowsOnDemand):
    """The rows of a file without its blank lines; a compressed file is first unpacked into a temporary one.

    Eight bytes a line, twice, are all that is kept in memory.
    """

    def __init__(self, path: Path, *, size: int | None) -> None:
        """`size`: rows to take (None: all)."""
        self._path = path
        if is_packed(path):
            self._file = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 - stays open as long as its rows
            with gzip.open(path, "rb") as packed:
                shutil.copyfileobj(packed, self._file, CHUNK)
            self._file.flush()
        else:
            self._file = path.open("rb")
        self._state = _state(self._file)
        self._starts, is_blank = _line_starts(self._file)
        self._lines = np.flatnonzero(~is_blank)[:size]

    def __len__(self) -> int:
        return len(self._lines)

    def at(self, index: int) -> Row:
        """Read one line.

        Raises:
            DataError: the file was changed since it was opened.
        """
        line = int(self._lines[index])
        start, end = int(self._starts[line]), int(self._starts[line + 1])
        # not mapped into memory: another process that shortens a mapped file would kill this one
        content = os.pread(self._file.fileno(), end - start, start)
        if _state(self._file) != self._state:
            raise DataError(
                f"--dataset {self._path}: was changed while a run was reading it; start again, and let runs have files "
                "of their own"
            )
        return _row(self._path, line + 1, _of_line(self._path, line + 1, content))

    def digest(self) -> str:
        """Hash all bytes up to the last row, and the file's name, which is part of the rows' names."""
        digest, left = hashlib.sha256(self._path.name.encode() + b"\n"), int(self._starts[self._lines[-1] + 1])
        self._file.seek(0)
        while left and (chunk := self._file.read(min(CHUNK, left))):
            digest.update(chunk)
            left -= len(chunk)
        return digest.hexdigest()


class ArrowRows(RowsOnDemand):
    """The first rows of a table, parquet or CSV, decoded into a temporary file."""

    def __init__(self, path: Path, *, size: int | None) -> None:
        """`size`: rows to take (None: all).

        Raises:
            DataError: it is no such file.
        """
        # Imported here: a run on JSON lines must not wait for arrow.
        import pyarrow
        from pyarrow import ipc

        self._unreadable = dict[int, DataError]()
        """Errors of unreadable rows of a CSV file, by index."""
        descriptor, name = tempfile.mkstemp(suffix=".arrow")
        try:
            with os.fdopen(descriptor, "wb") as decoded:
                schema, batches = csv_batches(path, self._unreadable) if _is_csv(path) else _parquet_batches(path)
                with ipc.new_file(decoded, schema) as writer:
                    for batch in batches:
                        writer.write_table(batch)
            self._table = ipc.open_file(pyarrow.memory_map(name)).read_all()
        except pyarrow.ArrowException as error:
            raise _unreadable_table(path, error) from error
        finally:
            os.unlink(name)  # the mapping outlives the name
        self._path = path
        self._size: int = self._table.num_rows if size is None else min(size, self._table.num_rows)

    def __len__(self) -> int:
        return self._size

    def at(self, index: int) -> Row:
        """Read one row."""
        (columns,) = self._table.slice(index, 1).to_pylist()
        return _row(self._path, index + 1, self._unreadable.get(index, columns))

    def digest(self) -> str:
        """Hash the file's bytes, its name and the number of rows that are taken."""
        with self._path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256")
        return hashlib.sha256(f"{self._path.name} {self._size} {content.hexdigest()}".encode()).hexdigest()


@lru_cache(maxsize=1)
def _on_demand(path: Path, size: int | None, changed_ns: int) -> Sequence[Row]:
    """Return rows read on demand, kept for the next caller; `changed_ns` is the file's present time of change."""
    return ArrowRows(path, size=size) if data_ending(path) in TABLES else LineRows(path, size=size)


def _is_csv(path: Path) -> bool:
    return data_ending(path) == ".csv"


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb") if is_packed(path) else path.open("rb"))


def _listed(path: Path) -> NumberedColumns:
    with _opened(path) as stream:
        items = cast(list[object], _parsed(stream.read().removeprefix(codecs.BOM_UTF8), str(path)))
    for number, value in enumerate(items, start=1):
        yield number, _object(value, f"{path}, item {number}")


def _lines(path: Path) -> NumberedColumns:
    with _opened(path) as stream:
        for number, line in enumerate(stream, start=1):
            if (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).strip():
                yield number, _of_line(path, number, line)


def _parquet(path: Path) -> NumberedColumns:
    import pyarrow
    from pyarrow import parquet

    try:
        batches = parquet.ParquetFile(path).iter_batches(batch_size=BATCH)
        yield from enumerate((columns for batch in batches for columns in batch.to_pylist()), start=1)
    except pyarrow.ArrowException as error:
        raise _unreadable_table(path, error) from error


def _parquet_batches(path: Path) -> tuple[Any, Iterator[Any]]:
    """Schema and tables of a parquet file, without dictionaries: words may have other codes in the next batch."""
    import pyarrow
    from pyarrow import parquet

    def plain(kind: Any) -> Any:
        return kind.value_type if pyarrow.types.is_dictionary(kind) else kind

    file = parquet.ParquetFile(path)
    schema = pyarrow.schema([field.with_type(plain(field.type)) for field in file.schema_arrow])
    tables = (pyarrow.Table.from_batches([batch]).cast(schema) for batch in file.iter_batches(batch_size=BATCH))
    return schema, tables


def _unreadable_table(path: Path, error: Exception) -> DataError:
    kind = "CSV" if _is_csv(path) else "parquet"
    return DataError(f"{path}: is not a {kind} file that can be read ({error}); write it again")


def _row(path: Path, number: int, columns: Columns | DataError) -> Row:
    row_id = f"{path.name}:{number}"
    if isinstance(columns, DataError):
        return Row(row_id=row_id, columns={}, unreadable=str(columns))
    return Row(row_id=row_id, columns=columns, folder=path.parent)


def _of_line(path: Path, number: int, line: bytes) -> Columns | DataError:
    content, location = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line, f"{path}, line {number}"
    try:
        return _object(_parsed(content, location), location)
    except DataError as error:
        return error


def _parsed(text: bytes, location: str) -> object:
    try:
        return json.loads(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{location}: is not UTF-8 text (byte {error.start + 1}); save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{location}: is not valid JSON ({error}); a row is one JSON object on one line") from error


def _object(value: object, location: str) -> Columns | DataError:
    if not isinstance(value, dict):
        return DataError(f"{location}: holds a JSON {type(value).__name__}; a row must be an object of named columns")
    return value


def _state(file: BinaryIO) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def _line_starts(file: BinaryIO) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the start of each line, with the end of the file last, and a mask of blank lines."""
    starts, heads = [np.zeros(1, dtype=np.int64)], list[NDArray[np.uint8]]()
    offset, is_new = 0, True
    file.seek(0)
    while chunk := file.read(CHUNK):
        content = np.frombuffer(chunk, dtype=np.uint8)
        line_starts = np.flatnonzero(content == NEWLINE) + 1
        heads += [content[:1]] * is_new + [content[line_starts[line_starts < len(content)]]]
        starts.append(line_starts + offset)
        offset, is_new = offset + len(chunk), chunk.endswith(b"\n")
    begins = np.concatenate(starts)
    if begins[-1] != offset:
        begins = np.append(begins, offset)
    is_blank = np.zeros(len(begins) - 1, dtype=np.bool_)
    # a line that begins with whitespace may be blank; a byte order mark before the first line is not part of it
    for line in {0, *np.flatnonzero(np.isin(np.concatenate(heads), BLANKS)).tolist()}:
        text = os.pread(file.fileno(), int(begins[line + 1] - begins[line]), int(begins[line]))
        is_blank[line] = not text.removeprefix(codecs.BOM_UTF8).strip()
    return begins, is_blank
