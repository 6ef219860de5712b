"""Selection of usable rows; the one place where `on_bad_row` applies."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.config.sections import DataConfig
from paceline.data.formats import Problem, problem
from paceline.data.rows import Row
from paceline.errors import DataError
from paceline.types import RowCheck


@dataclass(frozen=True, kw_only=True, slots=True)
class Screened:
    """The usable rows with their problems."""

    rows: tuple[Row, ...]
    """Rows in their order; at least one."""
    problems: tuple[Problem, ...]
    """Problems, one per row."""
    skipped: tuple[str, ...]
    """A sentence for each row that was left out; empty if `on_bad_row` is `stop`."""


def screen(rows: Sequence[Row], data: DataConfig, check: RowCheck | None) -> Screened:
    """Read the problem of every row, and check it with `check`.

    Raises:
        DataError: a row cannot be used and `on_bad_row` is `stop`, or none can.
    """
    kept, problems, skipped = list[Row](), list[Problem](), list[str]()
    for row in rows:
        try:
            asked = usable(row, data, check)
        except DataError as error:
            if data.on_bad_row == "stop":
                raise
            skipped.append(str(error))
        else:
            kept.append(row)
            problems.append(asked)
    if not kept:
        raise DataError(
            f"--on-bad-row skip leaves no row: none of the {len(rows)} can be used; correct them; the first: "
            f"{skipped[0]}"
        )
    return Screened(rows=tuple(kept), problems=tuple(problems), skipped=tuple(skipped))


def usable(row: Row, data: DataConfig, check: RowCheck | None) -> Problem:
    """Return the problem of a row.

    Raises:
        DataError: it cannot be used.
    """
    if row.unreadable is not None:
        raise DataError(row.unreadable)
    asked = problem(row, data)
    if check is not None:
        check(row.given, row.row_id)
    return asked
