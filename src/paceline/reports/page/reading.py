"""Reads a run directory at any moment of the run; damaged lines are counted.

Numbers of steps become lines of a chart, thinned where there are more steps than pixels, and sums over the run.
"""

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

import yaml

from paceline.checkpoints.existing_runs import Ending, is_being_written, is_run, last_writer, read_ending, refuse_links
from paceline.checkpoints.run_directory import file_of_set
from paceline.checkpoints.run_files import finite_int
from paceline.errors import CheckpointError
from paceline.metrics.definitions import Record
from paceline.metrics.statistics import mean_of

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


MAX_POINTS = 400
"""Most points of one line: about one per pixel of a chart."""

Values = tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One line of a chart; None is a step that has no such number."""

    steps: tuple[float, ...]
    """Step of each point: of several steps in one, the last."""
    values: Values
    first_steps: tuple[float, ...] = ()
    """First step of each point; empty where every step has its own point."""

    @property
    def last(self) -> float | None:
        """Newest number; None where there is none."""
        return next((value for value in reversed(self.values) if value is not None), None)

    @property
    def empty(self) -> bool:
        """Return True if there is no number at all."""
        return self.last is None


def bin_size(num_steps: int) -> int:
    """Steps that share one point."""
    return max(1, math.ceil(num_steps / MAX_POINTS))


def metric(records: Sequence[Record], *keys: str, reduce: Callable[[Sequence[float]], float] = mean_of) -> Series:
    """The number at `keys` of every step; long runs put `bin_size` steps into one point by `reduce`."""
    size = bin_size(len(records))
    bins = [records[start : start + size] for start in range(0, len(records), size)]
    return Series(
        steps=tuple(float(part[-1]["step"]) for part in bins),
        values=tuple(_reduced([value_at(record, *keys) for record in part], reduce) for part in bins),
        first_steps=tuple(float(part[0]["step"]) for part in bins) if size > 1 else (),
    )


def scaled(series: Series, by: Series) -> Series:
    """Each value divided by the other series' value of the same step."""
    pairs = zip(series.values, by.values, strict=True)
    return replace(series, values=tuple(a / b if a is not None and b else None for a, b in pairs))


def smoothed(series: Series, window: int) -> Series:
    """Centred moving mean over `window` points (odd), over those of them that exist near both ends."""
    reach, values = window // 2, series.values
    around = (values[max(0, i - reach) : i + reach + 1] for i in range(len(values)))
    return replace(series, values=tuple(_reduced(part, mean_of) for part in around))


def total(records: Sequence[Record], *keys: str) -> float:
    """Sum over all steps; steps without the number add nothing."""
    return math.fsum(value for record in records if (value := value_at(record, *keys)) is not None)


def _reduced(values: Sequence[float | None], reduce: Callable[[Sequence[float]], float]) -> float | None:
    present = [value for value in values if value is not None]
    return reduce(present) if present else None


PARTS = ("generate", "reward", "update", "evaluate", "checkpoint", "other")
"""Kinds of work that take a run's time, in the palette's order."""


def time_split(run: RunRecord) -> dict[str, float]:
    """Seconds of each of `PARTS` that took time: from the summary of an ended run, else so far."""
    seconds = {}
    for name in PARTS:
        spent = value_at(run.summary or {}, "clock", name)
        if spent is None:
            spent = total(run.evals, "clock", "seconds") if name == "evaluate" else total(run.metrics, "clock", name)
        seconds[name] = spent
    return {name: spent for name, spent in seconds.items() if spent > 0}


def total_seconds(run: RunRecord) -> float:
    """Wall time of the run so far."""
    ended = value_at(run.summary or {}, "clock", "total")
    return sum(time_split(run).values()) if ended is None else ended


def dropped_counts(run: RunRecord) -> list[tuple[str, float, float | None]]:
    """Count everything that was left out: what, how many, and of how many (None where a share says nothing).

    Zeros have rows too.
    """
    metrics = run.metrics
    prompts, completions, trained = (total(metrics, key) for key in ("prompts", "rollouts", "tokens_trained"))
    rows: list[tuple[str, float, float | None]] = [
        ("Groups without signal: all rewards equal", total(metrics, "groups_zero_deviation"), prompts),
        ("Groups without any reward", total(metrics, "groups_no_reward"), prompts),
        ("Groups outside the filter range", total(metrics, "groups_filtered"), prompts),
        ("Groups that steps were short of after the last refill", total(metrics, "groups_missing"), None),
        ("Completions without a reward", total(metrics, "rollouts_without_reward"), completions),
        ("Completions cut at the length limit and masked", total(metrics, "rollouts_masked"), completions),
    ]

    def by_function(key: str) -> list[tuple[str, float]]:
        return [(name, total(metrics, "rewards", name, key)) for name in run.reward_functions]

    failed = "Completions on which the reward function {} failed"
    in_part = "Completions that {} graded in part, as the step had used up its time for slow programs"
    rows += [(failed.format(name), number, completions) for name, number in by_function("failures")]
    rows += [(f"Failed calls of the reward function {name}", n, None) for name, n in by_function("failed_calls") if n]
    rows += [(in_part.format(name), number, completions) for name, number in by_function("cut_short") if number]
    # trained tokens that an option left out or held, where the option is on
    for key, what in (
        ("correction_masked_fraction", "Tokens held or masked by the rollout correction"),
        ("off_policy_fraction", "Tokens of completions left out as off-policy"),
        ("skipped_fraction", "Tokens of completions skipped for their ratio"),
    ):
        if any(value_at(record, key) is not None for record in metrics):
            rows.append((what, _whole(metrics, key, "tokens_trained"), trained))
    skipped = total(metrics, "updates_skipped")
    rows += [
        (
            "Training completions cut at the length limit",
            _whole(metrics, "truncated_fraction", "rollouts"),
            completions,
        ),
        ("Held-out completions that could not be graded", total(run.evals, "ungraded"), None),
        ("Updates skipped, as loss or gradient was not finite", skipped, total(metrics, "updates") + skipped),
    ]
    # steps that an alarm held for
    active = [record["alarms"] for record in metrics if isinstance(record.get("alarms"), list)]
    steps = Counter(name for alarms in active for name in alarms if isinstance(name, str))
    rows += [(f"Steps with the alarm {name}", number, len(metrics)) for name, number in steps.items()]
    rows.append(("Unreadable lines in this run's files", run.unreadable_lines, None))
    return rows


def _whole(metrics: Sequence[Record], share: str, of: str) -> float:
    """Add up each step's share times its denominator, rounded to whole numbers."""
    both = ((value_at(record, share), value_at(record, of)) for record in metrics)
    return sum(round(part * number) for part, number in both if part is not None and number is not None)
