"""Rows of a CSV file, whose cells are texts; what separates them is found out."""

import csv
import gzip
import re
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO, cast

from paceline.errors import DataError

LONGEST_CELL = 1 << 30  # Characters of a cell of CSV, at most: Python's own limit is below that of a row's test cases
UNNAMED = "Unnamed: 0"
"""Name that pandas gives a first column without one."""
BATCH = 1024  # Rows of a table that are decoded at once: a row group can be the whole of a file

Columns = dict[str, object]
NumberedColumns = Iterator[tuple[int, Columns | DataError]]
"""Line or item numbers, each with its columns or with the reason why it has none."""


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
    """Schema and tables of a CSV file; `unreadable` gets the reason of each row that is none, by its place."""
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
