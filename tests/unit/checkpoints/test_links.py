"""Nothing of a run is read or written through a link, a pipe or a device, and no writer leaves a draft behind."""

import errno
import os
from pathlib import Path

import pytest

from paceline.checkpoints import run_files
from paceline.checkpoints.existing_runs import WriteLock, refuse_unusable_directory
from paceline.checkpoints.finding import read_checkpoint
from paceline.checkpoints.run_directory import RunDir
from paceline.checkpoints.run_files import append
from paceline.errors import CheckpointError, ConfigError, StorageError
from paceline.reports.page.html import write_report
from paceline.runtime.whole_files import write_whole
from paceline.training.setup.configuration import read_run_configuration

CONFIG = "# paceline 0.1.0\n\nmodel: embedded\ndataset: arithmetic\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with RunDir.create(tmp_path / "run", CONFIG) as made:
        made.append_metrics({"clock": {}, "step": 1})
    (tmp_path / "run/final").mkdir()
    (tmp_path / "run/checkpoints/step-000001").mkdir(parents=True)
    return tmp_path / "run"


@pytest.mark.parametrize(
    "name",
    [
        *("rollouts", "evals", "checkpoints", "final", "images", "tokens", "kept", "aside", "stuck", "tensorboard"),
        *("metrics.jsonl", "identity.json", "config.yaml", "report.html", ".lock", "summary.json", "mlflow.db"),
        *("rollouts/step-000001.jsonl", "final/model.safetensors", "checkpoints/step-000002"),
    ],
)
def test_a_link_in_a_run_is_refused_wherever_it_stands(run: Path, name: str):
    outside = run.parent / "outside"
    outside.mkdir()
    place = run / name
    if place.is_dir():
        place.rename(run.parent / "moved")
    place.unlink(missing_ok=True)
    place.symlink_to(outside)
    for door in (write_report, RunDir.open, read_run_configuration, lambda path: RunDir.create(path, CONFIG)):
        with pytest.raises((CheckpointError, ConfigError), match=rf"{name} is a link, and a run may hold only"):
            door(run)
    assert not list(outside.iterdir())


@pytest.mark.parametrize("name", ["metrics.jsonl", "rollouts/step-000001.jsonl", ".lock", "summary.json"])
def test_a_pipe_in_a_run_is_refused_and_not_waited_for(run: Path, name: str):
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    for door in (write_report, RunDir.open):
        with pytest.raises(CheckpointError, match=rf"{name} is no regular file"):
            door(run)


def test_a_writer_follows_no_link(tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("kept")
    link = tmp_path / "metrics.jsonl"
    link.symlink_to(secret)
    with pytest.raises(StorageError):
        append(link, b"{}\n")
    write_whole(link, b"whole")
    assert (link.read_text(), link.is_symlink(), secret.read_text()) == ("whole", False, "kept")
    (tmp_path / ".lock").symlink_to(secret)
    with pytest.raises(OSError, match="symbolic links"):
        WriteLock(tmp_path)
    assert secret.read_text() == "kept"


def test_a_full_disk_leaves_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "report.html", b"page")
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_removes_the_drafts_of_a_killed_one(run: Path):
    (run / "rollouts" / ".0123456789abcdef.new").write_text("half")
    (run / ".mine.new").write_text("the user's own")
    RunDir.open(run).close()
    assert list((run / "rollouts").iterdir()) == []
    assert (run / ".mine.new").exists()


def test_a_checkpoint_with_a_link_in_it_is_not_whole(run: Path):
    place = run / "checkpoints/step-000001"
    (run.parent / "manifest.json").write_text("{}")
    (place / "progress.json").write_text('{"step": 1, "position": 2, "policy_version": 1}')
    (place / "manifest.json").symlink_to(run.parent / "manifest.json")
    with pytest.raises(CheckpointError, match="is not the file that was saved, but a link"):
        read_checkpoint(place)


def test_a_place_below_a_file_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file/a/b lies below .*file, which is a file; give another directory"):
        refuse_unusable_directory(tmp_path / "file/a/b")
