"""Programs as users write them, in a folder of their own whose name has a space and an umlaut."""

from pathlib import Path

import pytest

from tests.outside.desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "Läufe von mir")
