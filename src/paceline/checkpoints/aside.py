"""What a run did after a step, kept beside it before the run goes on from there."""

import os
import shutil
from pathlib import Path

from paceline.checkpoints.journal import unseal
from paceline.checkpoints.run_directory import RunDir
from paceline.checkpoints.run_files import json_line, step_files, whole_lines, write_or_explain
from paceline.errors import StorageError


def copy_later(run_dir: RunDir, step: int, folder: Path) -> None:
    """Copy what was recorded after `step` to a new directory, a run's own but for its checkpoints.

    Files of one step, which nothing changes in place, are hard links where the disk has them.

    Raises:
        StorageError: the disk refused.
    """
    try:
        folder.mkdir(parents=True)
        for name in ("config.yaml", "identity.json", "summary.json"):
            if (run_dir.path / name).exists():
                shutil.copyfile(run_dir.path / name, folder / name)
        for name in ("rollouts", "evals", "kept", "tokens"):
            (folder / name).mkdir()
            for file, number in step_files(run_dir.path / name).items():
                if number > step:
                    _link(file, folder / name / file.name)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written ({error.strerror}); make room for it") from error
    for name, records in (("metrics.jsonl", run_dir.metrics()), ("evals.jsonl", run_dir.evals())):
        lines = [json_line(record) for record in records if record["step"] > step]
        write_or_explain(folder / name, b"".join(lines))
    journal = [(line, unseal(line)) for line in whole_lines(run_dir.path / "journal.jsonl")]
    later = [line + b"\n" for line, record in journal if record is not None and record["step"] > step]
    write_or_explain(folder / "journal.jsonl", b"".join(later))


def _link(file: Path, copy: Path) -> None:
    try:
        os.link(file, copy)
    except OSError:  # not every file system has links
        shutil.copyfile(file, copy)
