"""`paceline report`: the page of one run, or the table of several."""

from collections.abc import Sequence
from pathlib import Path

from paceline.cli.arguments import directories
from paceline.cli.status import DONE
from paceline.metrics.intervals import Interval
from paceline.reports.format import percent, points
from paceline.reports.page.accounting import total_seconds
from paceline.reports.page.outcome import outcome
from paceline.reports.page.reading import read_run

USAGE = """usage: paceline report RUN [RUN ...]

One run directory, finished or not: writes RUN/report.html, which opens without a server.
Several: prints a table that compares them.
"""


def run(argv: list[str]) -> int:
    """Report on runs; returns the exit status."""
    if "-h" in argv or "--help" in argv:
        print(USAGE, end="")
        return DONE
    _report(directories(argv, command="report", form="RUN [RUN ...]"))
    return DONE


def _report(paths: list[Path]) -> None:
    from paceline.cli.report import compare
    from paceline.reports.page.html import write_report

    if len(paths) == 1:
        print(write_report(paths[0]))
    else:
        print(compare(paths))


_HEADINGS = ("run", "before", "after", "difference, points (95 % interval)", "seconds")


def compare(runs: Sequence[Path]) -> str:
    """One line per run: name, accuracy before and after, the difference with its interval, wall seconds.

    Raises:
        CheckpointError: one of `runs` holds no run.
    """
    rows = [_HEADINGS, *(_row(run) for run in runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    return "\n".join(_aligned(row, widths) for row in rows)


def _row(path: Path) -> tuple[str, ...]:
    run = read_run(path)
    found = outcome(run)
    before, after, gain = (found.before, found.after, found.difference) if found is not None else (None, None, None)
    return (path.resolve().name, _share(before), _share(after), _gain(gain), f"{total_seconds(run):.1f}")


def _share(accuracy: Interval | None) -> str:
    return "-" if accuracy is None else percent(accuracy.value)


def _gain(gain: Interval | None) -> str:
    return "-" if gain is None else f"{points(gain.value)} ({points(gain.low)} to {points(gain.high)})"


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    """Names to the left, numbers to the right."""
    name, *rest = row
    return "  ".join(
        [name.ljust(widths[0]), *(text.rjust(width) for text, width in zip(rest, widths[1:], strict=True))]
    )
