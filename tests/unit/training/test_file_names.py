"""Names of files in options lead to the same files from any directory, and a run's names stand where it was started."""

import json
import os
import shutil
from pathlib import Path

import pytest

from paceline.base_directory import held_base, hold_base, import_path, local_path
from paceline.errors import ConfigError
from paceline.training.setup.file_names import recorded_base, run_base, same_names, seen_from

OPTIONS = {
    "model": "tiny",
    "dataset": ["rows.jsonl#5", "arithmetic"],
    "eval_dataset": ["new=rows.jsonl", "org/name"],
    "reward_funcs": ["grade.py:brief(weight=2)", "accuracy", "model:tiny", "judge:tiny(rubric=rules.md)"],
    "environment": ["docs=search:folder", "harness:grade.py:agent"],
    "system_prompt": "file:rules.md",
    "output_dir": "runs/new",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder in ("tiny", "folder", "elsewhere", "runs/a"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("rows.jsonl", "grade.py", "rules.md"):
        (tmp_path / file).write_text("")
    return tmp_path


def test_names_of_files_are_said_anew_for_another_base_and_other_names_stay(project: Path):
    with held_base(project):
        assert seen_from(project, OPTIONS) == OPTIONS
        moved = seen_from(project / "elsewhere", OPTIONS)
    at = str(project)
    assert moved == {
        "model": f"{at}/tiny",
        "dataset": [f"{at}/rows.jsonl#5", "arithmetic"],
        "eval_dataset": [f"new={at}/rows.jsonl", "org/name"],
        "reward_funcs": [
            f"{at}/grade.py:brief(weight=2)",
            "accuracy",
            f"model:{at}/tiny",
            f"judge:{at}/tiny(rubric={at}/rules.md)",
        ],
        "environment": [f"docs=search:{at}/folder", f"harness:{at}/grade.py:agent"],
        "system_prompt": f"file:{at}/rules.md",
        "output_dir": f"{at}/runs/new",
    }
    with held_base(project / "elsewhere"):
        back = seen_from(project, {"model": "../tiny", "dataset": "../rows.jsonl", "output_dir": "runs/new"})
    assert back == {"model": "tiny", "dataset": "rows.jsonl", "output_dir": "elsewhere/runs/new"}


def test_a_file_that_a_run_names_keeps_that_name_however_a_command_spells_it(project: Path):
    (project / "linked").symlink_to(project)
    recorded = {"dataset": "rows.jsonl", "reward_funcs": ["grade.py:brief"]}
    with held_base(project / "elsewhere"):
        for spelling in ("../rows.jsonl", str(project / "rows.jsonl"), str(project / "linked" / "rows.jsonl")):
            given = {"dataset": spelling, "reward_funcs": [f"{project}/grade.py:brief"]}
            assert seen_from(project, given, recorded) == recorded
    with held_base(project):
        old = {"dataset": "../rows.jsonl", "seed": 3}
        assert same_names(old, project / "elsewhere", {"dataset": "rows.jsonl"}) == {"dataset": "rows.jsonl", "seed": 3}


def test_the_base_of_a_run_is_found_after_the_project_or_the_run_alone_was_moved(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    run = project / "runs/a"
    with held_base(project):
        (run / "identity.json").write_text(json.dumps({"base": recorded_base(run)}) + "\n")
    (run / "config.yaml").write_text("model: tiny\ndataset: rows.jsonl\n")
    monkeypatch.chdir(run)
    assert run_base(Path()) == project
    alone = project.parent / f"{project.name}-alone"
    shutil.copytree(run, alone)
    assert run_base(alone) == project
    monkeypatch.chdir("/")
    moved = project.parent / f"{project.name}-moved"
    project.rename(moved)
    assert run_base(moved / "runs/a") == moved
    (moved / "runs/a/identity.json").unlink()
    assert run_base(moved / "runs/a") == Path("/")


def test_a_held_base_stays_when_the_working_directory_changes_or_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(tmp_path)
    with held_base(tmp_path):
        os.chdir(gone)
        gone.rmdir()
        assert local_path("rows.jsonl") == tmp_path / "rows.jsonl"
        assert import_path(["", "/lib"]) == [str(tmp_path), "/lib"]
        with held_base(tmp_path / "other"):
            hold_base(tmp_path / "third")
            assert local_path("a") == tmp_path / "third" / "a"
        assert local_path("a") == tmp_path / "a"
    with pytest.raises(ConfigError, match="the working directory was removed"):
        import_path([""])


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("x" * 256, "has 256 bytes between slashes, and a file's has at most 255"),
        ("ä" * 128, "has 256 bytes"),
        ("a\udce9", r"'a\\udce9' is not UTF-8"),
        ("a\0b", "has a zero byte"),
        ("ab/" * 1400, "has 4200 bytes, and"),
    ],
)
def test_a_name_that_no_file_can_have_is_refused(name: str, sentence: str):
    with pytest.raises(ConfigError, match=sentence):
        local_path(name)
    local_path("x" * 255)


def test_a_tilde_before_no_user_is_part_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "~rows.jsonl").touch()
    with held_base(tmp_path):
        assert local_path("~rows.jsonl") == tmp_path / "~rows.jsonl"
        assert local_path("~/rows.jsonl") == tmp_path / "rows.jsonl"
        assert seen_from(tmp_path, {"dataset": "~rows.jsonl"}, {})["dataset"] == "~rows.jsonl"
