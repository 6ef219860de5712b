"""Doctests are looked for only where there are some: importing every file of the package takes most of a minute.

Some of the tests' own modules import packages that only `make test-adapters` installs.
"""

from pathlib import Path


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files other than tests without an example; None leaves the decision to pytest."""
    if collection_path.suffix == ".py" and not collection_path.name.startswith("test_"):
        return ">>>" not in collection_path.read_text() or None
    return None
