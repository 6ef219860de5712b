"""What a directory holds before a run uses it, the lock of its single writer, and the end of the last attempt.

A directory holds a run, other files, or nothing. While a writer lives, `.lock` is locked. Its text names the
writer and stays after the run: it marks a directory that Paceline made. The attempt itself writes its end to
`ended.json`, for every later reader.
"""

import fcntl
import json
import os
import re
import socket
import stat
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from types import NoneType

from paceline.checkpoints.run_files import GROWING, finite_int, json_line, step_files, write_or_explain
from paceline.errors import APPENDED, DONE, FAILED, INTERRUPTED, CheckpointError, ConfigError, PacelineError, first_line
from paceline.runtime.shown_text import hidden
from paceline.runtime.whole_files import open_to_write

LOCK = ".lock"

_MARK = re.compile(r"process \d+ on host .*\n")
_HELD: set[tuple[int, int, int]] = set()
"""Process, device and inode of every lock held here; a forked child holds none of its parent's."""
_HELD_GUARD = threading.Lock()
WRITTEN = (
    *("config.yaml", "identity.json", *GROWING, "summary.json", "ended.json", "timeline.json", "report.html", LOCK),
    *("rollouts", "evals", "kept", "tokens", "checkpoints", "final", "stuck", "aside"),
)
"""Files and directories that a run overwrites or removes."""
_HEAD = re.compile(r"(?:#.*\n)*# paceline \S+\n")
"""First lines of every config.yaml that Paceline wrote, after comments about changes."""


_TRACKER_FILES = ("trackers.json", "mlflow.db", "tensorboard", "wandb")
_FOLDERS = ("rollouts", "evals", "kept", "tokens", "images")
"""Folders of a run in which everything is a regular file."""


def refuse_links(path: Path) -> None:
    """Refuse, with a CheckpointError, a run in which a link or a device takes the place of a file or a directory.

    Otherwise a run directory from a stranger could have files outside of it read or written, or make a command hang.
    """
    top = [path / name for name in (*WRITTEN, *_TRACKER_FILES, "pass_rates.jsonl", "images")]
    inner = [entry for name in (*_FOLDERS, "checkpoints", "aside", "stuck") for entry in _entries(path / name)]
    final = [Path(folder, name) for folder, *names in os.walk(path / "final") for name in (*names[0], *names[1])]
    for entry in (*top, *inner, *final):
        try:
            mode = entry.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise CheckpointError(f"{entry} cannot be checked ({error.strerror}); correct its name") from None
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            continue
        kind = "a link" if stat.S_ISLNK(mode) else "no regular file"
        raise CheckpointError(
            f"{entry} is {kind}, and a run may hold only files and directories; replace it by a file or a directory"
        )


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else []


def is_run(path: Path) -> bool:
    """Return True if Paceline made a directory: by its `.lock`, or by the head of config.yaml in a copy."""
    return (path / "config.yaml").is_file() and (has_mark(path) or _has_head(path))


def refuse_no_run(path: Path, flag: str) -> None:
    """Refuse with a CheckpointError a directory without a run; `flag` is the option it was given by."""
    refuse_links(path)
    if not is_run(path):
        is_there = (path / "config.yaml").is_file()
        reason = "Paceline did not write its config.yaml" if is_there else "it has no config.yaml"
        raise CheckpointError(f"{flag} {path} is not a run directory ({reason}); give the directory of an earlier run")


def refuse_existing_run(path: Path) -> None:
    """Refuse, with a ConfigError, a directory where a new run would destroy an earlier one or foreign files.

    Refused are a path that is a file, a run with a finished step or a checkpoint, and files that Paceline did not
    write under names that a run writes.
    """
    refuse_unusable_directory(path)
    refuse_foreign_files(path)
    if holds_work(path):
        raise ConfigError(
            f"--output-dir {path} already holds a run",
            remedies=[f"continue it with --resume {path}", "give another directory"],
        )


def refuse_unusable_directory(path: Path) -> None:
    """Refuse a path that cannot be a run directory: a file, below a file, or where this user may not write."""
    if os.path.exists(path) and not path.is_dir():
        raise ConfigError(f"--output-dir {path} is a file; give the path of a directory that does not exist yet")
    existing = next(parent for parent in (path, *path.absolute().parents) if os.path.exists(parent))
    if not existing.is_dir():
        raise ConfigError(f"--output-dir {path} lies below {existing}, which is a file; give another directory")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(
            f"--output-dir {path} cannot be made, as this user may not write in {existing}; give another directory"
        )
    refuse_links(path)


def refuse_foreign_files(path: Path) -> None:
    """Refuse, with a ConfigError that names them, files that a run would overwrite and Paceline did not write."""
    # the head of config.yaml alone is not enough: a copied file has it too, and must not be overwritten
    has_own_config = _has_head(path) or not (path / "config.yaml").exists()
    if has_mark(path) and (has_own_config or holds_work(path)):
        return
    # empty files may be those of a process killed before it took the lock
    entries = {name: path / name for name in WRITTEN}
    foreign = [
        name
        for name, entry in entries.items()
        if (any(entry.iterdir()) if entry.is_dir() else entry.is_file() and entry.stat().st_size > 0)
    ]
    if foreign:
        raise ConfigError(
            f"--output-dir {path} holds {', '.join(foreign)}, which a run would overwrite and Paceline did not write; "
            f"move {'it' if len(foreign) == 1 else 'them'} away, or give another directory"
        )


def holds_work(path: Path) -> bool:
    """Return True if a directory holds results of a run: rollouts, metrics, a checkpoint or a summary.

    A run that ended before its first step was finished, as by an error in a reward function, has none of these.
    """
    metrics = path / "metrics.jsonl"
    committed = metrics.is_file() and b"\n" in metrics.read_bytes()
    checkpoints = any((path / "checkpoints").glob("step-*"))
    return committed or checkpoints or (path / "summary.json").exists() or bool(step_files(path / "rollouts"))


def _has_head(path: Path) -> bool:
    file = path / "config.yaml"
    return file.is_file() and _HEAD.match(file.read_text(encoding="utf-8", errors="replace")) is not None


class WriteLock:
    """Lock of a run directory's only writer, until `release` or the end of the process.

    A POSIX record lock, not flock: it belongs to the process, so no forked worker that outlives a killed run keeps a
    resumed run out. The system grants a process its own lock again, and drops it as soon as any descriptor of the file
    is closed. So locks held by this process are remembered and their files never opened a second time."""

    def __init__(self, directory: Path) -> None:
        """Take the lock; CheckpointError if this or another process has it, OSError if it cannot be written."""
        file, writer = directory / LOCK, f"process {os.getpid()} on host {socket.gethostname()}\n"
        with _HELD_GUARD:
            if _is_held_here(file):
                raise _in_use(directory, writer)
            descriptor = open_to_write(file, os.O_CREAT)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                holder = os.read(descriptor, 4096).decode(errors="replace")
                os.close(descriptor)
                raise _in_use(directory, holder) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, writer.encode(), 0)
            self._key = _key(os.fstat(descriptor))
            _HELD.add(self._key)
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        with _HELD_GUARD:
            if self._descriptor is None:
                return
            _HELD.discard(self._key)
            os.close(self._descriptor)
            self._descriptor = None


def has_mark(directory: Path) -> bool:
    """Return True if a run of Paceline has held the lock of a directory; another program's `.lock` is no mark."""
    file = directory / LOCK
    with _HELD_GUARD:
        # reading a lock that this process holds would release it
        if _is_held_here(file):
            return True
        return file.is_file() and _MARK.fullmatch(file.read_text(encoding="utf-8", errors="replace")) is not None


def is_being_written(directory: Path) -> bool:
    """Return True while the writer of a run directory lives, in this process or another; the lock is not taken."""
    file = directory / LOCK
    with _HELD_GUARD:
        if _is_held_here(file):  # opening it would release the lock
            return True
        try:
            descriptor = os.open(file, os.O_RDONLY)
        except OSError:
            return False
        try:
            os.lockf(descriptor, os.F_TEST, 0)
        except OSError:  # EACCES or EAGAIN: another process has it
            return True
        finally:
            os.close(descriptor)
        return False


def last_writer(directory: Path) -> str | None:
    """Return the text of `.lock`, `process N on host H`; None in a copy without it."""
    file = directory / LOCK
    with _HELD_GUARD:
        if _is_held_here(file):
            return f"process {os.getpid()} on host {socket.gethostname()}"
        text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
        return text.strip() if _MARK.fullmatch(text) else None


def _is_held_here(file: Path) -> bool:
    return file.exists() and _key(file.stat()) in _HELD


def _key(status: os.stat_result) -> tuple[int, int, int]:
    return os.getpid(), status.st_dev, status.st_ino


def _in_use(directory: Path, holder: str) -> CheckpointError:
    return CheckpointError(
        f"{directory} is in use by {holder.strip() or 'another process'}; wait until it ends or give another directory"
    )


ENDED = "ended.json"

KINDS = {
    **{"time": int | float, "status": int, "step": int, "sentence": str},
    **{"traceback": str | NoneType, "resume": str | NoneType},
}
"""Keys of the file, and what each holds."""

LATEST = 253_402_300_800
"""Seconds from 1970 to the year 10000, the first that `datetime` cannot hold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How an attempt ended: its status, its step and one sentence."""

    time: float
    """Seconds since 1970."""
    status: int
    """Exit status, as the command line has it: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    step: int
    """Steps completed."""
    sentence: str
    traceback: str | None
    """Traceback of an unexpected error or of one in the user's code, with what that code printed."""
    resume: str | None
    """Command or argument that resumes the run; None if it finished."""

    @property
    def is_finished(self) -> bool:
        """Return True if the run finished: nothing is left to resume."""
        return self.resume is None


def ending_of(
    error: BaseException | None, *, step: int, resume: str, interrupt: str | None = None, signal: str | None = None
) -> Ending:
    """Describe the end of an attempt after `step` steps.

    Args:
        error: exception that ended it; None at its regular end.
        step: steps completed.
        resume: command or argument that resumes the run.
        interrupt: name of the signal that stopped it between two steps, with a checkpoint.
        signal: name of the signal received, whatever it led to.

    >>> ending_of(None, interrupt="SIGTERM", step=3, resume="`paceline train --resume runs/a`").sentence
    'SIGTERM after step 3, with a checkpoint'
    """
    status, trace = INTERRUPTED, ""
    if isinstance(error, PacelineError):
        sentence, *appended = APPENDED.split(str(error), maxsplit=1)
        status, trace = error.exit_status, "".join(appended)
    elif isinstance(error, Exception | GeneratorExit):
        status, sentence = FAILED, f"{type(error).__name__}: {first_line(error)}"
        trace = "".join(traceback.format_exception(error)).strip()
    elif interrupt is not None:
        sentence = f"{interrupt} after step {step}, with a checkpoint"
    elif error is None:
        status, sentence = DONE, f"finished after step {step}"
    elif isinstance(error, SystemExit) and signal is None:
        status = error.code if isinstance(error.code, int) else FAILED
        sentence = f"the program called sys.exit({'' if error.code is None else repr(error.code)})"
    else:
        sentence = "; ".join(map(str, error.args)) if isinstance(error, KeyboardInterrupt) else ""
        sentence = sentence or f"{signal or 'interrupted'}, before the step in hand was done"
    return Ending(
        time=time.time(),
        status=status,
        step=step,
        sentence=hidden(" ".join(sentence.split())),
        traceback=hidden(trace) or None,
        resume=None if error is None and interrupt is None else resume,
    )


def write_ending(directory: Path, ending: Ending) -> None:
    """Write `ended.json`; StorageError if the disk refuses."""
    write_or_explain(directory / ENDED, json_line(asdict(ending)))


def read_ending(directory: Path) -> Ending | None:
    """Read `ended.json`; None without the file, or where its content is damaged."""
    file = directory / ENDED
    if not file.is_file():
        return None
    try:
        record = json.loads(file.read_text(encoding="utf-8", errors="replace"), parse_int=finite_int)
    except (ValueError, RecursionError):
        return None
    is_whole = isinstance(record, dict) and all(
        name in record and isinstance(record[name], kind) for name, kind in KINDS.items()
    )
    if not is_whole or not 0 <= record["time"] < LATEST:
        return None
    return Ending(**{name: record[name] for name in KINDS})
