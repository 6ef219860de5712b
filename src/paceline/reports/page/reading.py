"""Reads a run directory at any moment of the run; damaged lines are counted."""

import json
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import yaml

from paceline.checkpoints.endings import Ending, read_ending
from paceline.checkpoints.existing_runs import is_being_written, is_run, last_writer, refuse_links
from paceline.checkpoints.run_directory import file_of_set
from paceline.checkpoints.run_files import finite_int
from paceline.errors import CheckpointError
from paceline.metrics.definitions import Record

_ROLLOUTS = re.compile(r"step-(\d{6,})\.jsonl")
_COMPLETIONS = re.compile(r"([^.].*)-step-(\d{6,})\.jsonl")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """What a run has written so far."""

    path: Path
    metrics: tuple[Record, ...]
    evals: tuple[Record, ...]
    summary: Record | None
    """Record of `summary.json`; None until the run has finished."""
    ending: Ending | None
    """End of the last attempt; None while it runs, and where it could not write its end."""
    is_running: bool
    """True if a process writes here."""
    writer: str | None
    """Process that wrote here last; None in a copy."""
    config: Record
    config_text: str
    rollout_files: dict[int, Path]
    """Files of rollouts by step, ascending."""
    completion_files: dict[tuple[str, int], Path]
    """Held-out completions by set and step."""
    unreadable_lines: int
    """Number of lines that could not be read, which the report shows."""

    @property
    def has_finished(self) -> bool:
        """Return True if the run came to its regular end."""
        is_summed_up = self.summary is not None and self.summary.get("finished") is True
        return is_summed_up and (self.ending is None or self.ending.is_finished)

    @property
    def broken_off(self) -> str | None:
        """Return how a run ended that did not finish, in a sentence; None of one that goes on or has finished."""
        if self.has_finished:
            return None
        # before the lock: an attempt draws its last page while it still holds it
        if self.ending is not None and not self.ending.is_finished:
            return self.ending.sentence
        if self.is_running:
            return None
        if self.writer is None:
            return "this is a copy, and holds no word on how the run ended: it was killed, or it went on elsewhere"
        return (
            f"{self.writer} wrote here last and holds the lock no more, and it did not write how it ended: it was "
            "killed, as by a lack of memory, or its machine went down"
        )

    @property
    def grader(self) -> str:
        """The reward function by which evaluations are graded."""
        return str(self.config["eval_reward_func"]) if "eval_reward_func" in self.config else "accuracy"

    @property
    def reward_functions(self) -> list[str]:
        """Names of the reward functions, in the configured order."""
        rewards = [record["rewards"] for record in self.metrics if isinstance(record.get("rewards"), dict)]
        return list(dict.fromkeys(name for of_step in rewards for name in of_step))


def read_run(path: Path) -> RunRecord:
    """Read everything but the completions, which `read_lines` fetches one file at a time.

    Raises:
        CheckpointError: `path` holds no run.
    """
    refuse_links(path)
    if not is_run(path) and not (path / "metrics.jsonl").is_file():
        raise CheckpointError(
            f"{path} is not a run directory (no config.yaml of a run, no metrics.jsonl); give the directory of a run"
        )
    metrics, bad_metrics = read_lines(path / "metrics.jsonl", required=("step", "clock"), parse_int=finite_int)
    evals, bad_evals = read_lines(path / "evals.jsonl", required=("set", "step"), parse_int=finite_int)
    summaries, _ = read_lines(path / "summary.json", parse_int=finite_int)
    config_text = _text(path / "config.yaml")
    try:
        config = yaml.safe_load(config_text)
    except yaml.YAMLError:
        config = None  # the page still shows the text as it is
    rollouts = [(file, _ROLLOUTS.fullmatch(file.name)) for file in (path / "rollouts").glob("*.jsonl")]
    held_out = [(file, _COMPLETIONS.fullmatch(file.name)) for file in sorted((path / "evals").glob("*.jsonl"))]
    sets = {file_of_set(str(record["set"])): str(record["set"]) for record in evals}
    return RunRecord(
        path=path,
        metrics=metrics,
        evals=evals,
        summary=summaries[0] if summaries else None,
        ending=read_ending(path),
        is_running=is_being_written(path),
        writer=last_writer(path),
        config=config if isinstance(config, dict) else {},
        config_text=config_text,
        rollout_files=dict(sorted((int(match[1]), file) for file, match in rollouts if match)),
        completion_files={
            (sets.get(match[1], unquote(match[1])), int(match[2])): file for file, match in held_out if match
        },
        unreadable_lines=bad_metrics + bad_evals,
    )


def read_lines(
    file: Path, required: Iterable[str] = (), *, parse_int: Callable[[str], int] = int
) -> tuple[tuple[Record, ...], int]:
    """Records of a JSON lines file, and how many lines are none or lack a `required` key. No file: no record.

    `parse_int`: as in `read_records`.
    """
    records, unreadable = list[Record](), 0
    for line in filter(str.strip, _text(file).split("\n")):
        try:
            record = json.loads(line, parse_int=parse_int)
        except (ValueError, RecursionError):
            record = None
        whole = isinstance(record, dict) and all(key in record for key in required)
        if whole and isinstance(record.get("step", 0), int):
            records.append(record)
        else:
            unreadable += 1
    return tuple(records), unreadable


def value_at(record: Record, *keys: str) -> float | None:
    """Return the finite number at nested `keys`; None where the record has none."""
    value: object = record
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    # compared, as an integer may be beyond all floats
    return float(value) if abs(value) <= sys.float_info.max else None


def _text(file: Path) -> str:
    return file.read_bytes().decode("utf-8", errors="replace") if file.is_file() else ""
