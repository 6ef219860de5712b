"""The run directory, the public file interface: configuration, metrics, evaluations and every rollout.

    config.yaml            the resolved configuration; its presence makes a directory a run directory
    metrics.jsonl          one JSON object per optimiser step
    evals.jsonl            one JSON object per evaluation
    rollouts/step-000001.jsonl        one JSON object per rollout of a step
    kept/step-000001.jsonl            the same of a step that went wrong, each with the reason; resuming leaves them
    evals/SET-step-000000.jsonl       one JSON object per held-out completion (SET percent-encoded)
    summary.json           before, after and the time split, written when the run ends
    stuck/TIME/            where every thread stood when nothing happened any more
    timeline.json          with `profile`: what each process did when, as trace events
    .lock                  process and host that write here now

A line counts once its newline is on disk: appends are synced line by line, whole files appear by rename.
"""

import errno
import fcntl
import json
import math
import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from paceline.errors import CheckpointError, ConfigError

Record = Mapping[str, Any]

_STEP_FILE = re.compile(r"(?:.+-)?step-(\d{6,})\.jsonl")


@dataclass(frozen=True, slots=True)
class RunDir:
    """One run directory. `create` and `open` take its lock for this process; `RunDir(path)` is for reading alone."""

    path: Path
    torn_lines: int = 0
    """Unfinished last lines that `open` cut off: what a killed process was writing."""
    lock: int | None = None
    """File descriptor that holds `.lock`, None for a reader."""
    replaced: bool = False
    """Whether `create` took the place of a run in which no step was finished."""

    @classmethod
    def create(cls, path: Path, config_text: str) -> Self:
        """Make a new run directory at `path`; what is there may not be a run with a finished step or a checkpoint.

        Raises:
            ConfigError: `path` holds a run, is a file, or cannot be written.
            CheckpointError: another process is making a run there.
        """
        refuse_existing_run(path)
        try:
            for folder in (path, path / "rollouts", path / "evals"):
                folder.mkdir(parents=True, exist_ok=True)
            lock = _take_lock(path)
            refuse_existing_run(path)
            replaced = (path / "config.yaml").exists()
            _forget_records(path)
            _write_whole(path / "config.yaml", config_text.encode())
        except OSError as error:
            raise ConfigError(
                f"--output-dir {path} cannot be written ({error.strerror}); give a directory where you may write"
            ) from error
        return cls(path, lock=lock, replaced=replaced)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a run to go on with it: take its lock and cut off what a killed process left half-written.

        Raises:
            CheckpointError: no run directory, in use by another process, or not writable.
        """
        if not (path / "config.yaml").is_file():
            raise CheckpointError(
                f"--resume {path} is not a run directory (it has no config.yaml); give the directory of an earlier run"
            )
        try:
            lock = _take_lock(path)
            torn = sum(_cut_torn_line(path / name) for name in ("metrics.jsonl", "evals.jsonl"))
        except OSError as error:
            raise CheckpointError(
                f"--resume {path} cannot be written ({error.strerror}); make it writable or copy the run elsewhere"
            ) from error
        return cls(path, torn_lines=torn, lock=lock)

    def close(self) -> None:
        """Give the lock back; the end of the process does the same."""
        if self.lock is not None:
            fcntl.lockf(self.lock, fcntl.LOCK_UN)

    def __enter__(self) -> Self:
        """Hold the lock for a block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the lock back."""
        self.close()

    def append_metrics(self, record: Record) -> None:
        """Add one optimiser step; on return it survives a crash.

        Raises:
            ValueError: a number is not finite; the message names its key.
            CheckpointError: the disk refused; nothing half-written stays behind.
        """
        _append(self.path / "metrics.jsonl", _line(record))

    def append_eval(self, record: Record) -> None:
        """Add one evaluation, as `append_metrics` does for a step."""
        _append(self.path / "evals.jsonl", _line(record))

    def write_rollouts(self, step: int, records: Iterable[Record]) -> None:
        """Write all rollouts of a step: the whole file or none of it."""
        _write_lines(self._rollouts_file(step), records)

    def keep_batch(self, step: int, records: Iterable[Record], reason: str) -> Path:
        """Write a step's rollouts once more, each with `kept`, the reason, where a resumed run leaves them."""
        file = self.path / "kept" / f"step-{step:06d}.jsonl"
        file.parent.mkdir(exist_ok=True)
        _write_lines(file, ({**record, "kept": reason} for record in records))
        return file

    def write_eval_completions(self, set_name: str, step: int, records: Iterable[Record]) -> None:
        """Write the completions of one evaluation: the whole file or none of it."""
        _write_lines(self._eval_file(set_name, step), records)

    def write_summary(self, record: Record) -> None:
        """Write the summary of a run that came to its end."""
        _write_or_explain(self.path / "summary.json", _line(record))

    def write_timeline(self, record: Record) -> None:
        """Write what each process did when: the whole file or none of it."""
        _write_or_explain(self.path / "timeline.json", _line(record))

    def metrics(self) -> list[dict[str, Any]]:
        """All steps, in the order they were written, without an unfinished last line.

        Raises:
            CheckpointError: a line that is no JSON object; the message names file and line.
        """
        return _read(self.path / "metrics.jsonl")

    def evals(self) -> list[dict[str, Any]]:
        """All evaluations, read as `metrics` reads steps."""
        return _read(self.path / "evals.jsonl")

    def rollouts(self, step: int) -> list[dict[str, Any]]:
        """All rollouts of a step.

        Raises:
            CheckpointError: the step has no file, or a line is no JSON object.
        """
        file = self._rollouts_file(step)
        if not file.exists():
            raise CheckpointError(f"{file} does not exist: this run has rollouts of {_span(self.rollout_steps())}")
        return _read(file)

    def eval_completions(self, set_name: str, step: int) -> list[dict[str, Any]]:
        """The completions of one evaluation, in the order of its tasks.

        Raises:
            CheckpointError: the evaluation has no file, or a line is no JSON object.
        """
        file = self._eval_file(set_name, step)
        if not file.exists():
            raise CheckpointError(f"{file} does not exist: {set_name} was not evaluated at step {step}")
        return _read(file)

    def rollout_steps(self) -> list[int]:
        """Steps that have rollouts on disk, ascending."""
        return sorted(_step_files(self.path / "rollouts").values())

    def truncate_after(self, step: int) -> None:
        """Forget everything after `step`, which a run resumed from there writes again.

        Each file changes in one rename, so a crash in between leaves a directory that this can be called on again.
        """
        (self.path / "summary.json").unlink(missing_ok=True)
        for name, records in (("metrics.jsonl", self.metrics()), ("evals.jsonl", self.evals())):
            if any(record["step"] > step for record in records):
                _write_lines(self.path / name, (record for record in records if record["step"] <= step))
        for folder in (self.path / "rollouts", self.path / "evals"):
            for file, file_step in _step_files(folder).items():
                if file_step > step:
                    file.unlink()

    def _rollouts_file(self, step: int) -> Path:
        return self.path / "rollouts" / f"step-{step:06d}.jsonl"

    def _eval_file(self, set_name: str, step: int) -> Path:
        # quote is one-to-one, so two sets never share a file, whatever paths their names hold.
        return self.path / "evals" / f"{quote(set_name, safe=':')}-step-{step:06d}.jsonl"


def refuse_existing_run(path: Path) -> None:
    """Refuse a place where a new run would destroy an earlier one.

    Raises:
        ConfigError: `path` is a file, or holds a run with a finished step or a checkpoint.
    """
    if path.exists() and not path.is_dir():
        raise ConfigError(f"--output-dir {path} is a file; give the path of a directory that does not exist yet")
    if holds_work(path):
        raise ConfigError(
            f"--output-dir {path} already holds a run; go on with it by --resume {path}, or give another directory"
        )


def holds_work(path: Path) -> bool:
    """Whether a directory holds what a run achieved: a step's rollouts or metrics, a checkpoint, a summary.

    A run that ended before its first step was finished, as by an error in a reward function, has none of these.
    """
    metrics = path / "metrics.jsonl"
    committed = metrics.exists() and b"\n" in metrics.read_bytes()
    checkpoints = any((path / "checkpoints").glob("step-*"))
    return committed or checkpoints or (path / "summary.json").exists() or bool(_step_files(path / "rollouts"))


def _forget_records(path: Path) -> None:
    """Remove what a run without a finished step wrote: a first evaluation, and lines that it did not finish."""
    for file in (path / "metrics.jsonl", path / "evals.jsonl", *_step_files(path / "evals")):
        file.unlink(missing_ok=True)


def _take_lock(path: Path) -> int:
    # A POSIX record lock, not flock: it belongs to the process, so neither a forked worker that outlives a killed run
    # nor an earlier attempt in this same process keeps a resumed run out. It vanishes with the process.
    descriptor = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        holder = os.read(descriptor, 4096).decode(errors="replace").strip()
        os.close(descriptor)
        raise CheckpointError(
            f"{path} is in use by {holder or 'another process'}; wait until it ends or give another directory"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on host {socket.gethostname()}\n".encode(), 0)
    return descriptor


def _line(record: Record) -> bytes:
    # Model text may hold lone surrogates; backslashreplace writes them as JSON's own \udXXX escape.
    _refuse_not_finite(record, "")
    return (json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n").encode("utf-8", "backslashreplace")


def _refuse_not_finite(value: object, key: str) -> None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _refuse_not_finite(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _refuse_not_finite(inner, f"{key}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{key} must be a finite number to be recorded, got {value}")


def _append(file: Path, line: bytes) -> None:
    try:
        with file.open("ab", buffering=0) as stream:
            start = stream.tell()
            try:
                if stream.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(stream.fileno())
            except OSError:
                stream.truncate(start)
                raise
    except OSError as error:
        raise _refused(file, error) from error


def _write_lines(file: Path, records: Iterable[Record]) -> None:
    _write_or_explain(file, b"".join(_line(record) for record in records))


def _write_or_explain(file: Path, content: bytes) -> None:
    try:
        _write_whole(file, content)
    except OSError as error:
        raise _refused(file, error) from error


def _refused(file: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"{file} cannot be written ({error.strerror}); make room for it, then --resume the run")


def _write_whole(file: Path, content: bytes) -> None:
    temporary = file.with_name(f".{file.name}.new")
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, file)
    # The rename itself is on disk only once the directory is.
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _cut_torn_line(file: Path) -> int:
    if not file.exists():
        return 0
    content = file.read_bytes()
    complete = content.rfind(b"\n") + 1
    if complete == len(content):
        return 0
    os.truncate(file, complete)
    return 1


def _read(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    # What follows the last newline is empty, or a line that was never committed.
    lines = file.read_bytes().split(b"\n")[:-1]
    return [_parse(file, number, line) for number, line in enumerate(lines, start=1)]


def _parse(file: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise CheckpointError(
            f"{file}, line {number}, is not a JSON object: {line[:60].decode(errors='replace')!r}; "
            "restore the file from a copy, or delete that line"
        )
    return record


def _step_files(folder: Path) -> dict[Path, int]:
    matches = ((file, _STEP_FILE.fullmatch(file.name)) for file in folder.glob("*.jsonl") if file.name[0] != ".")
    return {file: int(match[1]) for file, match in matches if match}


def _span(steps: list[int]) -> str:
    return f"steps {steps[0]} to {steps[-1]}" if steps else "no step yet"
