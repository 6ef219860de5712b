"""`paceline report`: the page of one run, or the table of several."""

from collections.abc import Sequence
from pathlib import Path

from paceline.cli.arguments import directories
from paceline.errors import DONE, CheckpointError, PacelineError
from paceline.reports.format import percent, points
from paceline.reports.page.accounting import total_seconds
from paceline.reports.page.outcome import outcome
from paceline.reports.page.reading import read_run

USAGE = """usage: paceline report RUN [RUN ...]

One run directory, finished or not: writes RUN/report.html, which opens without a server.
Several: prints a table that compares them.
"""


HEADINGS = ("run", "before", "after", "difference, points (95 % interval)", "seconds")


def run(argv: list[str]) -> int:
    """Report on runs; returns the exit status."""
    if "-h" in argv or "--help" in argv:
        print(USAGE, end="")
        return DONE
    paths = directories(argv, command="report", form="RUN [RUN ...]")
    from paceline.reports.page.html import write_report

    try:
        print(write_report(paths[0]) if len(paths) == 1 else compare(paths))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, PacelineError):
            raise
        # the border of what somebody may have written by hand
        said = f"the records in {' '.join(map(str, paths))} are not as Paceline writes them"
        raise CheckpointError(f"{said} ({type(error).__name__}: {error}); restore them from a copy") from error
    return DONE


def compare(runs: Sequence[Path]) -> str:
    """One line per run: name, accuracy before and after, the difference with its interval, wall seconds.

    Raises:
        CheckpointError: one of `runs` holds no run.
    """
    rows = [HEADINGS]
    for path in runs:
        run = read_run(path)
        found = outcome(run)
        before, after, gain = (found.before, found.after, found.difference) if found is not None else (None, None, None)
        shares = ["-" if accuracy is None else percent(accuracy.value) for accuracy in (before, after)]
        points_gained = "-" if gain is None else f"{points(gain.value)} ({points(gain.low)} to {points(gain.high)})"
        rows.append((path.resolve().name, shares[0], shares[1], points_gained, f"{total_seconds(run):.1f}"))
    first, *others = ([row[column] for row in rows] for column in range(len(HEADINGS)))
    # names to the left, numbers to the right
    columns = [[text.ljust(max(map(len, first))) for text in first]]
    columns += [[text.rjust(max(map(len, column))) for text in column] for column in others]
    return "\n".join("  ".join(row) for row in zip(*columns, strict=True))
