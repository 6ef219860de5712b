"""The first commands of a new user, with relative names."""

import os
import sysconfig
from pathlib import Path

import pytest

import paceline
from tests.outside.desk import Desk


def test_a_run_with_a_relative_output_dir_is_read_from_another_directory(desk: Desk):
    small = ("--max-steps", 1, "--dataset-size", 8, "--eval-size", 4, "--prompts-per-step", 2, "--num-generations", 2)

    trained = desk.paceline("train", *small, "--output-dir", "runs/mine")
    (desk.path / "elsewhere").mkdir()
    reported = desk.paceline("report", "../runs/mine", cwd="elsewhere")

    assert trained.returncode == 0, trained.stderr
    assert reported.returncode == 0, reported.stderr
    assert reported.stdout == "../runs/mine/report.html\n"
    assert "mine" in (desk.path / "runs/mine/report.html").read_text(encoding="utf-8")


@pytest.mark.long
def test_a_source_tree_that_is_not_installed_says_its_version_and_trains(desk: Desk):
    source = Path(__file__).parents[2] / "src"
    bare = Path(sysconfig.get_path("purelib"))
    # an environment with every library and without Paceline's own metadata
    for folder in bare.iterdir():
        if not folder.name.lower().startswith(("paceline", "__editable__")) and not folder.name.endswith(".pth"):
            (desk.path / "site").mkdir(exist_ok=True)
            (desk.path / "site" / folder.name).symlink_to(folder)
    env = {"PYTHONPATH": f"{source}{os.pathsep}{desk.path / 'site'}"}
    words = ("-S", "-m", "paceline")
    assert desk.python(*words, "--version", env=env).stdout == f"paceline {paceline.__version__}\n"
    small = ("--max-steps", 1, "--dataset-size", 8, "--eval-size", 4, "--prompts-per-step", 2, "--num-generations", 2)
    trained = desk.python(*words, "train", *small, "--output-dir", "runs/mine", env=env)
    assert trained.returncode == 0, trained.stderr
    assert (desk.path / "runs/mine/config.yaml").read_text().startswith(f"# paceline {paceline.__version__}\n")
