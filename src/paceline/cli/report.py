"""`paceline report`: the page of one run, or the table of several."""

from pathlib import Path

from paceline.cli.arguments import directories
from paceline.cli.status import DONE

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
    from paceline.reports.page.comparing import compare
    from paceline.reports.page.html import write_report

    if len(paths) == 1:
        print(write_report(paths[0]))
    else:
        print(compare(paths))
