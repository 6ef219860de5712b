"""Rows of one file: JSON lines, a JSON list, or parquet. A file is one split."""

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, cast

from paceline.data.rows import Row
from paceline.errors import DataError

JSON_LINES = (".jsonl", ".ndjson")
JSON = (".json",)
PARQUET = (".parquet",)
READABLE = (*JSON_LINES, *JSON, *PARQUET)

Columns = dict[str, object]
NumberedColumns = Iterator[tuple[int, Columns | DataError]]
"""Line or item numbers, each with its columns or with why it has none."""


def read_file(path: Path, *, size: int | None) -> list[Row]:
    """The first `size` rows of a file (None: all), told apart by its ending.

    `.jsonl` and `.ndjson` hold one object per line, `.json` one list of objects (or lines all the same), `.parquet` a
    table; `.gz` may follow the first three. UTF-8, with or without a byte order mark; either line ending; blank lines
    are no rows. A line that is not UTF-8, no JSON or no object is a row too, an unreadable one.

    Raises:
        DataError: another ending, an unreadable or empty file, or a list of JSON or a table that cannot be read.
    """
    kind = data_ending(path)
    if kind not in READABLE:
        raise DataError(f"--dataset {path}: a file must end in one of {', '.join(READABLE)} (or .jsonl.gz); convert it")
    try:
        numbered = _parquet(path) if kind in PARQUET else _json(path, is_lines=kind in JSON_LINES)
        rows = [_row(f"{path.name}:{number}", columns) for number, columns in islice(numbered, size)]
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"--dataset {path}: cannot be read ({error}); check the file and its permissions") from error
    if not rows:
        raise DataError(f"--dataset {path}: holds no rows; give a file with at least one")
    return rows


def _row(row_id: str, columns: Columns | DataError) -> Row:
    if isinstance(columns, DataError):
        return Row(row_id=row_id, columns={}, unreadable=str(columns))
    return Row(row_id=row_id, columns=columns)


def data_ending(path: Path) -> str:
    """The ending that says how a file is written, in lower case, `.gz` left out where it can follow."""
    name = path.name.lower()
    plain = Path(name.removesuffix(".gz")).suffix
    return plain if plain in (*JSON_LINES, *JSON) else Path(name).suffix


def _json(path: Path, *, is_lines: bool) -> NumberedColumns:
    is_packed = path.name.lower().endswith(".gz")
    with cast(BinaryIO, gzip.open(path, "rb") if is_packed else path.open("rb")) as stream:
        if not is_lines:
            text = stream.read().removeprefix(codecs.BOM_UTF8)
            if text.lstrip().startswith(b"["):
                yield from _json_list(path, text)
                return
            stream.seek(0)
        for number, line in enumerate(stream, start=1):
            content = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if content.strip():
                yield number, _of_line(content, f"{path}, line {number}")


def _json_list(path: Path, text: bytes) -> NumberedColumns:
    for number, value in enumerate(cast(list[object], _parsed(text, str(path))), start=1):
        yield number, _object(value, f"{path}, item {number}")


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
