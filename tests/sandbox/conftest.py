"""One battle per level that this host offers, run once and looked at by many tests."""

from collections.abc import Iterator

import pytest

from paceline.sandbox.levels import open_sandbox, probe_levels
from paceline.sandbox.programs import Sandbox
from tests.sandbox.battle import Battle, fight_all
from tests.sandbox.hostile import FAMILIES

LEVELS = ("namespaces", "landlock")


@pytest.fixture(scope="session", params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    """Each level with isolation."""
    reports = {report.level: report for report in probe_levels()}
    if not reports[request.param].available:
        pytest.skip(f"{request.param} is not offered here: {reports[request.param].reason}")
    return str(request.param)


@pytest.fixture(scope="session")
def battle(level: str) -> Battle:
    """Every hostile program, run at `level`."""
    return fight_all(level, [program for family in FAMILIES.values() for program in family])


@pytest.fixture(scope="module")
def sandbox(level: str) -> Iterator[Sandbox]:
    """A sandbox of two slots at `level`."""
    opened = open_sandbox(level, slots=2)
    yield opened
    opened.close()
