"""Which level holds, and what is said where none does."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from paceline.errors import SandboxError
from paceline.sandbox.levels import breaches, open_sandbox
from paceline.sandbox.local import LocalSandbox
from paceline.sandbox.programs import Execution, Job
from tests.unit.sandbox.sandboxes import ISOLATING, REPORTS, opened, run


def test_every_level_is_reported_from_the_strongest_on_with_what_is_in_force_or_why_not():
    assert list(REPORTS) == ["namespaces", "landlock", "none"]
    assert REPORTS["none"].available
    assert all(report.reason for report in REPORTS.values())


def test_auto_takes_the_strongest_level_that_holds():
    wanted = [level for level in ISOLATING if REPORTS[level].available]
    if not wanted:
        pytest.skip("no level with isolation is available here")
    sandbox = open_sandbox("auto")
    assert sandbox.description.startswith(wanted[0])
    assert sandbox.slots == os.cpu_count()
    sandbox.close()


@pytest.mark.parametrize("level", ISOLATING)
def test_a_level_with_isolation_holds_against_every_probe(level):
    sandbox = opened(level)
    assert breaches(sandbox, isolating=True) == []
    sandbox.close()


def test_the_probes_get_through_where_there_is_no_isolation():
    sandbox = opened("none")
    found = breaches(sandbox, isolating=True)
    sandbox.close()
    assert {"a file outside can be read", "TCP connects", "UDP sends", "a process can be forked"} <= set(found)
    assert {"abstract sockets connect", "a file can be made outside", "another process can be seen"} <= set(found)


class Broken:
    """A sandbox in which programs do not run as they should."""

    description, slots = "broken", 1

    def execute(self, job: Job) -> Execution:
        return Execution(status="runtime_error", output="", error="no interpreter", seconds=0.0)

    def close(self) -> None:
        """Nothing to end."""


def test_a_level_in_which_a_plain_program_does_not_run_does_not_count():
    assert breaches(Broken(), isolating=True) == ["a plain program does not run: runtime_error no interpreter"]


BARRED = """
import struct
from paceline.sandbox.inside import kernel
from paceline.errors import SandboxError
from paceline.sandbox.levels import open_sandbox

def refuse(*names):
    code = [(0x20, 0, 0, 0)]
    for name in names:
        code += [(0x15, 0, 1, kernel.NUMBERS[name][kernel.machine_column()]), (0x06, 0, 0, 0x50001)]
    code.append((0x06, 0, 0, 0x7FFF0000))
    kernel.control_process(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.install_filter(b"".join(struct.pack("=HBBI", *line) for line in code))

refuse({names})
try:
    sandbox = open_sandbox("auto")
    print(sandbox.description)
    sandbox.close()
except SandboxError as error:
    print(error)
"""


def said_where_calls_are_refused(*names: str, **environment: str) -> str:
    """What `open_sandbox("auto")` comes to in a process for which the kernel refuses these calls."""
    source = BARRED.replace("{names}", ", ".join(map(repr, names)))
    return subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    ).stdout


def test_a_start_that_fails_leaves_no_directory(tmp_path):
    # A process can be started (by vfork), but not fork: the directory is made before and has to go again.
    said = said_where_calls_are_refused("clone", "clone3", TMPDIR=str(tmp_path))
    assert "--sandbox auto cannot be had on this machine" in said
    assert list(tmp_path.iterdir()) == []


def test_where_namespaces_are_refused_auto_takes_landlock():
    if not REPORTS["landlock"].available:
        pytest.skip(REPORTS["landlock"].reason)
    assert said_where_calls_are_refused("unshare").startswith("landlock (Landlock")


def test_where_nothing_isolates_auto_refuses_with_reasons_and_remedies():
    said = said_where_calls_are_refused("unshare", "landlock_create_ruleset")
    assert "--sandbox auto cannot be had on this machine (namespaces: unshare: Operation not permitted; " in said
    assert "landlock: landlock_create_ruleset: Operation not permitted)" in said
    for remedy in ("--sandbox the address", "sysctl", "--security-opt", "--sandbox none"):
        assert remedy in said


def test_where_no_temporary_directory_can_be_written_the_reason_is_told(monkeypatch):
    def none_is_usable():
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", none_is_usable)
    with pytest.raises(SandboxError, match="No usable temporary directory found"):
        open_sandbox("auto")


ROOT = """
import os, sys
from paceline.sandbox.inside.confining import separate
from paceline.sandbox.inside.confining import enter_new_root
place = sys.argv[1]
sys.path.append(place + "/lib/python3/lib-dynload")
identity = separate("namespaces")
enter_new_root(identity.user, identity.group)
print(os.listdir("/tmp"), os.listdir(place + "/lib"))
"""


def test_an_interpreter_below_tmp_can_be_used():
    if not REPORTS["namespaces"].available:
        pytest.skip(REPORTS["namespaces"].reason)
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        (Path(place) / "lib" / "python3" / "lib-dynload").mkdir(parents=True)
        done = subprocess.run([sys.executable, "-c", ROOT, place], capture_output=True, text=True, check=True)
    assert done.stdout == f"{[Path(place).name]} ['python3']\n"


def test_a_level_asked_for_by_name_is_not_replaced_by_another(monkeypatch):
    monkeypatch.setattr(sys, "platform", "elsewhere")
    with pytest.raises(SandboxError, match=r"--sandbox namespaces cannot be had .*local sandboxes need Linux"):
        open_sandbox("namespaces")


def test_no_isolation_is_said_in_the_description():
    sandbox = opened("none")
    assert isinstance(sandbox, LocalSandbox)
    assert run(sandbox, "print(1)").output == "1\n"
    assert sandbox.description == "none (no isolation)"
    sandbox.close()
