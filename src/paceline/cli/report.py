"""`paceline report`: the page of one run, or the table of several and a page of them."""

from collections.abc import Sequence
from pathlib import Path

from paceline.base_directory import named_path
from paceline.cli.arguments import directories
from paceline.errors import DONE, CheckpointError, ConfigError, PacelineError
from paceline.reports.page.reading import read_run

USAGE = """usage: paceline report RUN
       paceline report RUN RUN ... [--page FILE]

One run directory, finished or not: writes RUN/report.html, which opens without a server.
Several: prints a table that compares them, with the options that differ and the paired
difference to the first run. --page FILE writes a page with it and their curves.
"""


def run(argv: list[str]) -> int:
    """Report on runs; returns the exit status."""
    if "-h" in argv or "--help" in argv:
        print(USAGE, end="")
        return DONE
    words, page = _page_apart(argv)
    paths = directories(words, command="report", form="RUN [RUN ...]")
    if page is not None and len(paths) == 1:
        raise ConfigError("--page is of several runs; leave it out, and the page of one run is its report.html")
    from paceline.reports.page.html import write_report

    try:
        if len(paths) == 1:
            print(write_report(paths[0]))
            return DONE
        print(compare(paths))
        if page is not None:
            from paceline.reports.page.comparison import write_comparison

            print(write_comparison([read_run(path) for path in paths], page))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, PacelineError):
            raise
        # the border of what somebody may have written by hand
        message = f"the records in {' '.join(map(str, paths))} are not as Paceline writes them"
        raise CheckpointError(f"{message} ({type(error).__name__}: {error}); restore them from a copy") from error
    return DONE


def _page_apart(argv: Sequence[str]) -> tuple[list[str], Path | None]:
    """Take `--page FILE` or `--page=FILE` out of the words."""
    words, pages = list[str](), list[str]()
    left = iter(argv)
    for word in left:
        if word == "--page":
            pages.append(next(left, ""))
        elif word.startswith("--page="):
            pages.append(word.removeprefix("--page="))
        else:
            words.append(word)
    if len(pages) > 1 or any(not page or page.startswith("-") for page in pages):
        raise ConfigError("--page needs one FILE; write `paceline report RUN RUN ... --page FILE`")
    return words, named_path(pages[0]) if pages else None


def compare(runs: Sequence[Path]) -> str:
    """The table of runs as aligned lines: names to the left, numbers to the right.

    Raises:
        CheckpointError: one of `runs` holds no run.
    """
    from paceline.reports.page.comparison import table

    rows = table([read_run(path) for path in runs])
    first, *others = ([row[column] for row in rows] for column in range(len(rows[0])))
    columns = [[text.ljust(max(map(len, first))) for text in first]]
    columns += [[text.rjust(max(map(len, column))) for text in column] for column in others]
    return "\n".join("  ".join(row) for row in zip(*columns, strict=True))
