"""Write what the tests prove, in which file, and in how many seconds, as `make test-all` does at its end:

    python scripts/proofs.py build/tests.xml build/proofs.md

The sentences are the first ones of the test files' docstrings. The seconds are those of a JUnit report.
"""

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
TITLES = {
    "laws": "Laws: what holds whatever the options",
    "reference": "References: every objective against its source",
    "integration": "Whole runs",
    "sandbox": "The sandbox against hostile programs",
    "chaos": "Runs that are killed and harmed",
    "browser": "Pages in a browser",
    ".": "The house: imports, documents, site",
}
"""Sections by folder below `tests`, in their order; those of units follow, one per package."""
HEAD = """# What is proven

Each row is a test file: what it proves, in its own words, and the seconds that all its tests take together.
`docs/architecture.md` says what the laws are. A file without seconds did not run here: it needs a GPU, a browser, vLLM
or TRL.
"""


def files() -> list[Path]:
    """Return every test file, law 2 before law 10."""
    return sorted(TESTS.rglob("test_*.py"), key=lambda file: re.sub(r"\d+", lambda one: one[0].zfill(3), str(file)))


def claim(file: Path) -> str:
    """Return what a test file proves: the first sentence of its docstring; empty without one."""
    text = " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", text, maxsplit=1)[0]


def seconds_of(report: Path) -> dict[str, float]:
    """Return the seconds of each module of a JUnit report that ran, by its dotted name."""
    found = Counter[str]()
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is None:
            found[case.get("classname", "")] += float(case.get("time", 0))
    return dict(found)


def page(seconds: Mapping[str, float]) -> str:
    """Return the page."""
    folders = defaultdict[str, list[Path]](list)
    for file in files():
        folders[str(file.parent.relative_to(TESTS))].append(file)
    units = {name: f"Units of `{name.removeprefix('unit/')}`" for name in sorted(folders) if name not in TITLES}
    parts = [HEAD]
    for name, title in {**TITLES, **units}.items():
        parts += [f"## {title}\n", "\n".join(["| proven | file | s |", "|---|---|--:|", *rows(folders[name], seconds)])]
        parts.append("")
    return "\n".join(parts)


def rows(of: list[Path], seconds: Mapping[str, float]) -> Iterator[str]:
    """Yield the table's lines on these files."""
    for file in of:
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        taken = [value for module, value in seconds.items() if module == name or module.startswith(f"{name}.")]
        cost = f"{sum(taken):.1f}" if taken else ""
        yield f"| {claim(file).replace('|', chr(92) + '|')} | `{file.relative_to(TESTS)}` | {cost} |"


if __name__ == "__main__":
    report, proofs = map(Path, sys.argv[1:])
    proofs.write_text(page(seconds_of(report)))
