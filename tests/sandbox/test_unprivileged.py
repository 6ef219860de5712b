"""A user without any privilege is guarded as well as root is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
NOBODY = 61234
"""A user that exists nowhere."""
FAMILIES = (
    "reading",
    "connecting",
    "control_channel",
    "disk_bombs",
    "files_outside",
    "forking",
    "kernel_surface",
    "lingering",
    "other_processes",
)


def as_nobody(python, *arguments):
    environment = {"PYTHONPATH": str(REPOSITORY / "src"), "PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [python, *arguments],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        env=environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def python():
    """An interpreter and a repository that a user without rights can reach."""
    if os.getuid() != 0:
        pytest.skip("the other tests run as a user without rights already")
    for candidate in (sys._base_executable, "/usr/bin/python3"):
        try:
            if as_nobody(candidate, "-c", "import tests.sandbox.battle").returncode == 0:
                return candidate
        except PermissionError:
            continue
    pytest.skip("no interpreter and repository are in reach of other users")


@pytest.mark.parametrize("level", ["namespaces", "landlock"])
def test_a_user_without_rights_is_guarded_as_well(python, level):
    done = as_nobody(
        python,
        "-c",
        f"from paceline.sandbox.levels import *; print(*probe_levels(), sep='\\n'); open_sandbox('{level}')",
    )
    if done.returncode:
        pytest.skip(f"{level} is not offered to users without rights: {done.stdout}")
    fought = as_nobody(python, "-m", "tests.sandbox.battle", level, *FAMILIES)
    assert fought.stdout.splitlines()[:-1] == []
    assert fought.returncode == 0, fought.stderr
