"""`paceline report`: the page of one run, or the table of several."""

from pathlib import Path

from paceline.cli.status import DONE
from paceline.errors import ConfigError

USAGE = """usage: paceline report RUN [RUN ...]

One run directory, finished or not: writes RUN/report.html, which opens without a server.
Several: prints a table that compares them.
"""


def run(argv: list[str]) -> int:
    """Report on the runs that argv names; the exit status."""
    if "-h" in argv or "--help" in argv:
        print(USAGE, end="")
        return DONE
    flags = [word for word in argv if word.startswith("-")]
    if flags:
        raise ConfigError(f"there is no option {flags[0]}; `paceline report RUN [RUN ...]` takes run directories only")
    if not argv:
        raise ConfigError("report needs a run directory; write `paceline report runs/NAME`")
    _report([Path(word).expanduser() for word in argv])
    return DONE


def _report(paths: list[Path]) -> None:
    from paceline.report import compare, write_report

    if len(paths) == 1:
        print(write_report(paths[0]))
    else:
        print(compare(paths))
