"""A run directory: writes and reads its files, and lets one process write at a time."""

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, TracebackType, UnionType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from paceline.checkpoints.digests import content_digest
from paceline.checkpoints.existing_runs import ENDED, WriteLock, refuse_existing_run, refuse_no_run
from paceline.checkpoints.journal import Committed, committed_after, is_whole, lines_of, read_journal, seal
from paceline.checkpoints.run_files import (
    GROWING,
    append,
    cut_torn_line,
    finite_int,
    json_line,
    link_or_copy,
    read_records,
    remove_drafts,
    step_files,
    write_or_explain,
)
from paceline.errors import CheckpointError, ConfigError, StorageError
from paceline.metrics.definitions import Record
from paceline.runtime.whole_files import write_whole

if TYPE_CHECKING:
    from paceline.data.pictures import PictureStore

IDENTITY = {"options", "dataset", "eval_dataset", "model", "graders", "environments", "changes"}
"""Keys of `identity.json`, each of which is compared on resuming."""
EVALUATION: Mapping[str, type | UnionType] = {
    **{"step": int, "set": str, "n": int | NoneType},
    **dict.fromkeys(("accuracy", "ci_low", "ci_high"), int | float | NoneType),
}
"""Keys of a line of `evals.jsonl` that readers compute with, and the type of each."""
LONGEST_SET = 200
"""Characters of a held-out set's name in a file name, which may have 255 together with the step."""
IMAGES = "images"
"""Folder with the images of prompts, each under the hash of its pixels."""
TRACKERS = "trackers.json"
"""File with the addresses at which trackers show the run."""


@dataclass(frozen=True, slots=True)
class RunDir:
    """A run directory. `create` and `open` take its lock for this process; `RunDir(path)` is read-only."""

    path: Path
    torn_lines: int = 0
    """Unfinished last lines that `open` cut off, as a killed process leaves them."""
    lock: WriteLock | None = None
    """None for a reader."""
    replaced: bool = False
    """True if `create` replaced a run without a finished step."""

    @classmethod
    def create(cls, path: Path, config_text: str) -> Self:
        """Create a run directory at `path`.

        ConfigError: it holds a run with results or a foreign file in the way, is a file, or cannot be written.
        CheckpointError: a run is being made there, by this process or another.
        """
        refuse_existing_run(path)
        try:
            for folder in (path, path / "rollouts", path / "evals"):
                folder.mkdir(parents=True, exist_ok=True)
            lock = WriteLock(path)
            with ExitStack() as failing:
                failing.callback(lock.release)
                refuse_existing_run(path)
                replaced = (path / "config.yaml").exists()
                # what a run without a finished step wrote: a first evaluation, and unfinished lines
                leftovers = [path / name for name in (*GROWING, "identity.json", ENDED, TRACKERS)]
                for file in (*leftovers, *step_files(path / "evals")):
                    file.unlink(missing_ok=True)
                write_whole(path / "config.yaml", config_text.encode())
                failing.pop_all()
        except OSError as error:
            raise ConfigError(
                f"--output-dir {path} cannot be written ({error.strerror}); give a directory where you may write"
            ) from error
        return cls(path, lock=lock, replaced=replaced)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a run to resume it: take its lock and cut off half-written lines.

        CheckpointError: no run directory, in use by this process or another, or not writable.
        """
        refuse_no_run(path, "--resume")
        try:
            lock = WriteLock(path)
            with ExitStack() as failing:
                failing.callback(lock.release)
                for folder in (path, path / "rollouts", path / "evals", path / IMAGES):
                    remove_drafts(folder)
                torn = sum(cut_torn_line(path / name) for name in GROWING)
                failing.pop_all()
        except OSError as error:
            raise CheckpointError(
                f"--resume {path} cannot be written ({error.strerror}); make it writable or copy the run elsewhere"
            ) from error
        return cls(path, torn_lines=torn, lock=lock)

    def close(self) -> None:
        """Release the lock; the end of the process does the same."""
        if self.lock is not None:
            self.lock.release()

    def __enter__(self) -> Self:
        """Hold the lock for a block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock."""
        self.close()

    def append_metrics(self, record: Record) -> None:
        """Append the record of one step; on return it survives a crash.

        ValueError: the key that is named holds no finite number. StorageError: the disk refused; nothing is appended.
        """
        append(self.path / "metrics.jsonl", json_line(record))

    def append_eval(self, record: Record) -> None:
        """Append one evaluation, as `append_metrics` does for a step."""
        append(self.path / "evals.jsonl", json_line(record))

    def write_rollouts(self, step: int, records: Iterable[Record]) -> None:
        """Write all rollouts of a step: the whole file or none of it."""
        write_or_explain(self._rollouts_file(step), _lines(records))

    def commit_rollouts(self, step: int, lines: Iterable[bytes], about: Record) -> None:
        """Write a step's rollouts, a JSON line each, then commit them by a line in the journal that contains `about`.

        StorageError: the disk refused; the step is not committed.
        """
        file, content = self._rollouts_file(step), b"".join(lines)
        write_or_explain(file, content)
        relative_path = str(file.relative_to(self.path))
        append(self._journal, seal({"step": step, "file": relative_path, **content_digest(content), **about}))

    def write_images(self, pictures: "PictureStore", names: Iterable[str]) -> None:
        """Write images by the hashes of their pixels: each whole, and on the disk on return.

        StorageError: the disk refused.
        """
        folder = self.path / IMAGES
        try:
            folder.mkdir(exist_ok=True)
            for name in names:
                pictures.write(name, folder)
        except OSError as error:
            raise StorageError(
                f"{folder} cannot be written ({error.strerror})",
                remedies=["make room for it"],
                then="--resume the run",
            ) from error

    def keep_batch(self, step: int, lines: Iterable[bytes], *, reason: str) -> Path:
        """Write rollouts to a file that no resumed run replaces, each with the reason in `kept`."""
        return self._write_apart("kept", step, ({**json.loads(line), "kept": reason} for line in lines))

    def write_eval_completions(self, set_name: str, step: int, records: Iterable[Record]) -> None:
        """Write the completions of one evaluation: the whole file or none of it."""
        write_or_explain(self._eval_file(set_name, step), _lines(records))

    def write_tokens(self, step: int, about: Record, records: Iterable[Record]) -> Path:
        """Write a replay's results for a step's tokens: the SHA-256 of its rollouts first, then a line for each."""
        return self._write_apart("tokens", step, (about, *records))

    def _write_apart(self, folder: str, step: int, records: Iterable[Record]) -> Path:
        file = self.path / folder / f"step-{step:06d}.jsonl"
        try:
            file.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"{file.parent} cannot be made ({error.strerror})",
                remedies=["make room for it"],
                then="--resume the run",
            ) from error
        write_or_explain(file, _lines(records))
        return file

    def write_config(self, text: str) -> None:
        """Replace the configuration."""
        write_or_explain(self.path / "config.yaml", text.encode())

    def write_identity(self, record: Record) -> None:
        """Write the identity that a resumed run is compared with."""
        write_or_explain(self.path / "identity.json", json_line(record))

    def add_links(self, links: Iterable[str]) -> None:
        """Remember the addresses at which trackers show this run; each attempt may have its own."""
        known = self.links()
        all_links = tuple(dict.fromkeys((*known, *links)))
        if all_links != known:
            write_or_explain(self.path / TRACKERS, json_line({"links": all_links}))

    def links(self) -> tuple[str, ...]:
        """Return the addresses given to `add_links`, each once, oldest first."""
        file = self.path / TRACKERS
        return tuple(link for record in read_records(file) for link in record["links"]) if file.exists() else ()

    def write_summary(self, record: Record) -> None:
        """Write the summary of a finished run."""
        write_or_explain(self.path / "summary.json", json_line(record))

    def summary(self) -> dict[str, Any]:
        """Read the summary; empty until the run has ended."""
        file = self.path / "summary.json"
        if not file.is_file():
            return {}
        try:
            record = dict(json.loads(file.read_text(encoding="utf-8"), parse_int=finite_int))
            if type(record.get("final_step")) is not int:
                raise ValueError("final_step is no step")
            return record
        except (ValueError, TypeError, RecursionError) as error:
            raise CheckpointError(f"{file} is not the JSON object that was written; restore it from a copy") from error

    def write_timeline(self, record: Record) -> None:
        """Write the timeline: the whole file or none of it."""
        write_or_explain(self.path / "timeline.json", json_line(record))

    def identity(self) -> dict[str, Any] | None:
        """Read what `write_identity` wrote; None in a run that was killed before.

        CheckpointError: the file does not hold what was written.
        """
        file = self.path / "identity.json"
        if not file.is_file():
            return None
        records = read_records(file)
        if len(records) != 1 or not records[0].keys() >= IDENTITY:
            raise CheckpointError(
                f"{file} is damaged, and a resumed run is compared with it; restore it from a copy, or delete it to "
                "resume with the present options, data and model"
            )
        return records[0]

    def metrics(self) -> list[dict[str, Any]]:
        """Read all steps in order, without an unfinished or a foreign line; CheckpointError for a bad one."""
        return read_records(self.path / "metrics.jsonl", mark="clock", needs={"step": int}, parse_int=finite_int)

    def evals(self) -> list[dict[str, Any]]:
        """Read all evaluations, as `metrics` reads steps."""
        return read_records(self.path / "evals.jsonl", mark="set", needs=EVALUATION, parse_int=finite_int)

    def rollouts(self, step: int) -> list[dict[str, Any]]:
        """Read all rollouts of a step; CheckpointError without a file, or for a line that is no JSON object."""
        file = self._rollouts_file(step)
        if not file.exists():
            raise CheckpointError(f"{file} does not exist: this run has rollouts of {_span(self.rollout_steps())}")
        return read_records(file)

    def eval_completions(self, set_name: str, step: int) -> list[dict[str, Any]]:
        """Read an evaluation's completions in the order of its tasks; CheckpointError as in `rollouts`."""
        file = self._eval_file(set_name, step)
        if not file.exists():
            raise CheckpointError(f"{file} does not exist: {set_name} was not evaluated at step {step}")
        return read_records(file)

    def rollout_steps(self) -> list[int]:
        """List the steps that have rollouts on disk, ascending."""
        return sorted(step_files(self.path / "rollouts").values())

    def journal(self) -> dict[int, dict[str, Any]]:
        """Read the journal's entry of every step whose rollouts are committed, without damaged lines."""
        return read_journal(self._journal)[0]

    def committed(self, step: int) -> dict[str, Any]:
        """Return the journal's entry of a step; CheckpointError if its rollouts are not as they were committed."""
        records = self.journal()
        if step not in records:
            raise CheckpointError(
                f"{self.path} has no committed rollouts of step {step}, but of {_span(sorted(records))}"
            )
        if not is_whole(records[step], self._rollouts_content(step)):
            raise CheckpointError(f"{self._rollouts_file(step)} is not the file that was committed; restore it")
        return records[step]

    def truncate_after(self, step: int) -> Committed:
        """Remove everything after `step` except committed rollouts; a run resumed from there writes it again.

        Each file changes in one rename, so a crash in between leaves a directory that this can be called on again.
        Returns the committed steps that follow without a gap. A damaged one and all after it are removed.
        """
        # read before anything is removed: a damaged line is refused, and a refusal changes no file
        series = (("metrics.jsonl", self.metrics()), ("evals.jsonl", self.evals()))
        for name in ("summary.json", ENDED):
            (self.path / name).unlink(missing_ok=True)
        for name, records in series:
            if any(record["step"] > step for record in records):
                write_or_explain(self.path / name, _lines(record for record in records if record["step"] <= step))
        for file, file_step in step_files(self.path / "evals").items():
            if file_step > step:
                file.unlink()
        first = max(step, 0)
        # rollouts after a failed step come from weights that this attempt may not reach
        failed = [kept_step for kept_step in step_files(self.path / "kept").values() if kept_step > first]
        if failed:
            self.discard_rollouts_after(min(failed))
        committed = committed_after(self._journal, first, self._rollouts_content)
        self.discard_rollouts_after(first + len(committed.entries))
        return committed

    def discard_rollouts_after(self, step: int) -> None:
        """Remove the rollouts of all later steps, committed or not: a resumed run samples them again."""
        kept = lines_of(self._journal, lambda line_step: line_step <= step)
        if self._journal.is_file() and self._journal.read_bytes() != kept:
            write_or_explain(self._journal, kept)
        for folder in ("rollouts", "tokens"):
            for file, file_step in step_files(self.path / folder).items():
                if file_step > step:
                    file.unlink()

    @property
    def _journal(self) -> Path:
        return self.path / "journal.jsonl"

    def _rollouts_content(self, step: int) -> bytes | None:
        file = self._rollouts_file(step)
        return file.read_bytes() if file.is_file() else None

    def _rollouts_file(self, step: int) -> Path:
        return self.path / "rollouts" / f"step-{step:06d}.jsonl"

    def _eval_file(self, set_name: str, step: int) -> Path:
        return self.path / "evals" / f"{file_of_set(set_name)}-step-{step:06d}.jsonl"


def file_of_set(name: str) -> str:
    """Return the beginning of the names of a held-out set's files.

    Quoting is one-to-one, so two sets never share a file, whatever paths their names hold; Windows and some network
    disks allow no colon in a file's name. A name that is too long for a file is cut, and ends in its hash.

    >>> file_of_set("data/rows.jsonl"), len(file_of_set("x" * 300))
    ('data%2Frows.jsonl', 167)
    """
    quoted = quote(name, safe="")
    if len(quoted) <= LONGEST_SET:
        return quoted
    return f"{quoted[:150]}~{hashlib.sha256(quoted.encode()).hexdigest()[:16]}"


def _lines(records: Iterable[Record]) -> bytes:
    return b"".join(json_line(record) for record in records)


def _span(steps: list[int]) -> str:
    return f"steps {steps[0]} to {steps[-1]}" if steps else "no step yet"


def copy_later(run_dir: RunDir, step: int, folder: Path) -> None:
    """Copy the records after `step` to a new directory: a run without checkpoints. StorageError: the disk refused.

    Files of one step, which nothing changes in place, are hard links where the disk has them.
    """
    try:
        folder.mkdir(parents=True)
        for name in ("config.yaml", "identity.json", "summary.json", ENDED):
            if (run_dir.path / name).exists():
                shutil.copyfile(run_dir.path / name, folder / name)
        for name in ("rollouts", "evals", "kept", "tokens"):
            (folder / name).mkdir()
            for file, number in step_files(run_dir.path / name).items():
                if number > step:
                    link_or_copy(file, folder / name / file.name)
        if (run_dir.path / IMAGES).is_dir():
            (folder / IMAGES).mkdir()
            for image in (run_dir.path / IMAGES).glob("?" * 64):
                link_or_copy(image, folder / IMAGES / image.name)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written ({error.strerror}); make room for it") from error
    for name, records in (("metrics.jsonl", run_dir.metrics()), ("evals.jsonl", run_dir.evals())):
        write_or_explain(folder / name, _lines(record for record in records if record["step"] > step))
    write_or_explain(
        folder / "journal.jsonl", lines_of(run_dir.path / "journal.jsonl", lambda line_step: line_step > step)
    )
