"""Doctests are looked for only where there are some: importing every file of the package takes most of a minute."""

from pathlib import Path

SOURCE = Path(__file__).parent / "src"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files of the package without an example; None leaves the decision to pytest."""
    if collection_path.suffix == ".py" and collection_path.is_relative_to(SOURCE):
        return ">>>" not in collection_path.read_text() or None
    return None
