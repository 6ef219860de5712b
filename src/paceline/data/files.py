"""Rows of one file: JSON lines, a JSON list, or parquet. A file is one split."""

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO, cast

from paceline.data.json_lines import LineRows
from paceline.data.rows import WHOLE, Row
from paceline.data.tables import parquet_rows
from paceline.errors import DataError

JSON_LINES = (".jsonl", ".ndjson")
JSON = (".json",)
PARQUET = (".parquet",)
READABLE = (*JSON_LINES, *JSON, *PARQUET)

Columns = dict[str, object]
NumberedColumns = Iterator[tuple[int, Columns | DataError]]
"""Line or item numbers, each with its columns or with the reason why it has none."""


def read_file(path: Path, *, size: int | None) -> Sequence[Row]:
    """Return the first `size` rows of a file (None: all); above `WHOLE` rows, lines and tables are read on demand.

    The ending tells the format. `.jsonl` and `.ndjson` hold one object per line, `.json` a list of objects or lines,
    `.parquet` a table; `.gz` may follow the first three. Text is UTF-8, with or without a byte order mark; blank lines
    are no rows. A line that is not UTF-8, not JSON or no object is an unreadable row.

    Raises:
        DataError: another ending, an unreadable or empty file, or a list of JSON or a table that cannot be read.
    """
    kind = data_ending(path)
    if kind not in READABLE:
        raise DataError(f"--dataset {path}: a file must end in one of {', '.join(READABLE)} (or .jsonl.gz); convert it")
    try:
        numbered = _parquet(path) if kind in PARQUET else _json(path, is_lines=kind in JSON_LINES)
        is_list = kind in JSON and _is_list(path)
        most = size if is_list else min(WHOLE + 1, size or WHOLE + 1)
        rows: Sequence[Row] = [_row(path, number, columns) for number, columns in islice(numbered, most)]
        if len(rows) > WHOLE and not is_list:
            rows = _on_demand(path, size, kind, path.stat().st_mtime_ns)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"--dataset {path}: cannot be read ({error}); check the file and its permissions") from error
    if not rows:
        raise DataError(f"--dataset {path}: holds no rows; give a file with at least one")
    return rows


@lru_cache(maxsize=1)
def _on_demand(path: Path, size: int | None, kind: str, changed_ns: int) -> Sequence[Row]:
    """Return rows read on demand, kept for the next caller; `changed_ns` is the file's present time of change."""
    if kind in PARQUET:
        return parquet_rows(path, size=size)
    return LineRows(path, partial(_row_of_line, path), size=size)


def _row_of_line(path: Path, content: bytes, number: int) -> Row:
    line = content.removeprefix(codecs.BOM_UTF8) if number == 1 else content
    return _row(path, number, _of_line(line, f"{path}, line {number}"))


def _row(path: Path, number: int, columns: Columns | DataError) -> Row:
    row_id = f"{path.name}:{number}"
    if isinstance(columns, DataError):
        return Row(row_id=row_id, columns={}, unreadable=str(columns))
    return Row(row_id=row_id, columns=columns)


def data_ending(path: Path) -> str:
    """Return the ending that tells a file's format, in lower case, without a `.gz` behind it."""
    name = path.name.lower()
    plain = Path(name.removesuffix(".gz")).suffix
    return plain if plain in (*JSON_LINES, *JSON) else Path(name).suffix


def _opened(path: Path) -> BinaryIO:
    is_packed = path.name.lower().endswith(".gz")
    return cast(BinaryIO, gzip.open(path, "rb") if is_packed else path.open("rb"))


def _is_list(path: Path) -> bool:
    """Return True if the text of a file begins with a bracket."""
    with _opened(path) as stream:
        first = next((line for line in stream if line.removeprefix(codecs.BOM_UTF8).strip()), b"")
    return first.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")


def _json(path: Path, *, is_lines: bool) -> NumberedColumns:
    with _opened(path) as stream:
        if not is_lines and _is_list(path):
            items = cast(list[object], _parsed(stream.read().removeprefix(codecs.BOM_UTF8), str(path)))
            for number, value in enumerate(items, start=1):
                yield number, _object(value, f"{path}, item {number}")
            return
        for number, line in enumerate(stream, start=1):
            content = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if content.strip():
                yield number, _of_line(content, f"{path}, line {number}")


def _of_line(content: bytes, place: str) -> Columns | DataError:
    try:
        return _object(_parsed(content, place), place)
    except DataError as error:
        return error


def _parsed(text: bytes, place: str) -> object:
    try:
        return json.loads(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: is not UTF-8 text (byte {error.start + 1}); save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: is not valid JSON ({error}); a row is one JSON object on one line") from error


def _object(value: object, place: str) -> Columns | DataError:
    if not isinstance(value, dict):
        return DataError(f"{place}: holds a JSON {type(value).__name__}; a row must be an object of named columns")
    return value


def _parquet(path: Path) -> NumberedColumns:
    # Imported here: a run on JSON lines must not wait for arrow.
    import pyarrow
    from pyarrow import parquet

    try:
        batches = parquet.ParquetFile(path).iter_batches(batch_size=1024)
        yield from enumerate((columns for batch in batches for columns in batch.to_pylist()), start=1)
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: is not a parquet file that can be read ({error}); write it again") from error
