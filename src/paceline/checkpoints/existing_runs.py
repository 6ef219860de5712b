"""Check of a directory before a run takes it: a run's of ours, someone else's, or free."""

import re
from pathlib import Path

from paceline.checkpoints.lock import LOCK, has_mark
from paceline.checkpoints.run_files import APPENDED, step_files
from paceline.errors import CheckpointError, ConfigError

_WRITTEN = (
    *("config.yaml", "identity.json", *APPENDED, "summary.json", "timeline.json", "report.html", LOCK),
    *("rollouts", "evals", "kept", "tokens", "checkpoints", "final", "stuck", "aside"),
)
"""Files and directories that a run overwrites or removes."""
_HEAD = re.compile(r"(?:#.*\n)*# paceline \S+\n")
"""First lines of every config.yaml that Paceline wrote, after comments about changes."""


def is_run(path: Path) -> bool:
    """Return True if Paceline made a directory: by its `.lock`, or by the head of config.yaml in a copy."""
    return (path / "config.yaml").is_file() and (has_mark(path) or _has_head(path))


def refuse_no_run(path: Path, flag: str) -> None:
    """Refuse a directory without a run; `flag` is the option it was given by.

    Raises:
        CheckpointError: there is no config.yaml, or one of somebody else's.
    """
    if not is_run(path):
        is_there = (path / "config.yaml").is_file()
        reason = "Paceline did not write its config.yaml" if is_there else "it has no config.yaml"
        raise CheckpointError(f"{flag} {path} is not a run directory ({reason}); give the directory of an earlier run")


def refuse_existing_run(path: Path) -> None:
    """Refuse a place where a new run would destroy an earlier one, or someone else's files.

    Raises:
        ConfigError: `path` is a file, holds a run with a finished step or a checkpoint, or files that Paceline did not
            write under names that a run writes.
    """
    if path.exists() and not path.is_dir():
        raise ConfigError(f"--output-dir {path} is a file; give the path of a directory that does not exist yet")
    refuse_foreign_files(path)
    if holds_work(path):
        raise ConfigError(
            f"--output-dir {path} already holds a run; continue it with --resume {path}, or give another directory"
        )


def refuse_foreign_files(path: Path) -> None:
    """Refuse a directory where a run would overwrite files that are not its own.

    Raises:
        ConfigError: the sentence names what is in the way.
    """
    # the head of config.yaml alone is not enough: such a file may be a copy, good to be read and not to be replaced
    has_own_config = _has_head(path) or not (path / "config.yaml").exists()
    if has_mark(path) and (has_own_config or holds_work(path)):
        return
    found = [name for name in _WRITTEN if _is_taken(path / name)]
    if found:
        raise ConfigError(
            f"--output-dir {path} holds {', '.join(found)}, which a run would write over, and no run of Paceline's was "
            f"begun there; move {'it' if len(found) == 1 else 'them'} away, or give another directory"
        )


def holds_work(path: Path) -> bool:
    """Return True if a directory holds results of a run: rollouts, metrics, a checkpoint or a summary.

    A run that ended before its first step was finished, as by an error in a reward function, has none of these.
    """
    metrics = path / "metrics.jsonl"
    committed = metrics.exists() and b"\n" in metrics.read_bytes()
    checkpoints = any((path / "checkpoints").glob("step-*"))
    return committed or checkpoints or (path / "summary.json").exists() or bool(step_files(path / "rollouts"))


def _has_head(path: Path) -> bool:
    file = path / "config.yaml"
    return file.is_file() and _HEAD.match(file.read_text(encoding="utf-8", errors="replace")) is not None


def _is_taken(place: Path) -> bool:
    """Return True if something would be lost; empty files may be those of a process killed before it took the lock."""
    return any(place.iterdir()) if place.is_dir() else place.is_file() and place.stat().st_size > 0
