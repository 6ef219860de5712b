"""The transcripts that `scripts/journeys.sh OUT` keeps, into docs/journeys.md: python -m scripts.journeys_page OUT

What is long is shortened where it repeats or goes on; how many lines are left out is said in their place.
"""

import sys
from itertools import groupby
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "journeys.md"
MARKS = "<!-- transcripts -->", "<!-- end of transcripts -->"
LINES = 18
"""Most lines of a command: the first two thirds and the last of them."""
TITLES = {
    "newcomer": "A newcomer",
    "data": "Data and rewards of one's own",
    "real": "A real model",
    "trl": "A user of TRL",
    "researcher": "A researcher",
    "operator": "An operator",
    "reader": "A reader of the docs",
}


def transcripts(place: Path) -> str:
    """Every journey with its commands, what each printed, its exit status and its seconds."""
    rows = [line.split("\t") for line in (place / "journeys.tsv").read_text(encoding="utf-8").splitlines()]
    parts = list[str]()
    for journey, found in groupby(rows, key=lambda row: row[0].partition("-")[0]):
        commands = list(found)
        seconds = sum(float(row[2]) for row in commands)
        parts.append(f"### {TITLES[journey]}\n\n{len(commands)} commands, {seconds:.0f} s.\n")
        for name, status, took in commands:
            said = (place / f"{name}.txt").read_text(encoding="utf-8").rstrip("\n").split("\n")
            ended = "" if status == "0" else f", status {status}"
            text = "\n".join([*shortened(said), f"[{took} s{ended}]"])
            parts.append(f"<!-- not run: what commands printed -->\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def shortened(lines: list[str]) -> list[str]:
    """The first and the last of many lines, and how many are left out between them."""
    if len(lines) <= LINES:
        return lines
    head, tail = 2 * LINES // 3, LINES // 3
    return [*lines[:head], f"[{len(lines) - head - tail} lines left out]", *lines[-tail:]]


def main(place: str) -> None:
    """Replace what stands between the marks of the page."""
    text = PAGE.read_text(encoding="utf-8")
    begin, end = MARKS
    before, after = text.partition(begin)[0], text.partition(end)[2]
    PAGE.write_text(f"{before}{begin}\n\n{transcripts(Path(place))}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
