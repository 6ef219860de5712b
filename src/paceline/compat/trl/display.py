"""The log, completions and metrics as transformers shows them, under TRL's names."""

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers import (
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from paceline.compat.trl.history import OURS
from paceline.training.rollouts.sampler import RolloutBatch


class _WithoutOurs(TrainerCallback):
    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **parts: Any
    ) -> None:
        super().on_log(args, state, control, logs=for_screen(logs), **parts)


class LogPrinter(_WithoutOurs, PrinterCallback):
    """One line per log, without a progress bar."""


class LogProgress(_WithoutOurs, ProgressCallback):
    """One line per log above a progress bar."""


def for_screen(logs: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the log without our own metrics, which stay in `log_history`, `metrics.jsonl` and the trackers.

    >>> for_screen({"reward": 1.0, "refills": 0, "clock/update": 0.5, "half": 0.5})
    {'reward': 1.0, 'half': 0.5}
    """
    return {name: value for name, value in logs.items() if name not in OURS and not name.startswith("clock/")}


def print_completions(
    console: Console, batch: RolloutBatch, *, step: int, limit: int | None, columns: Mapping[str, Sequence[Any]]
) -> None:
    """Print the first `limit` completions (None: all) with prompt, rewards and advantage; `columns` are extra."""
    rows = [(group.task, rollout) for group in batch.groups for rollout in group.rollouts]
    names = list(batch.scores.values)
    table = Table(title=f"step {step}", show_lines=True)
    for heading in ("prompt", "completion", *names, *columns, "advantage"):
        table.add_column(heading)
    for place, (task, rollout) in enumerate(rows[:limit]):
        rewards = [rollout.rewards[name] for name in names]
        scores = ["none" if reward is None else f"{reward:.2f}" for reward in rewards]
        more = [str(values[place]) if place < len(values) else "" for values in columns.values()]
        texts = (task.prompt, rollout.completion.text, *scores, *more, f"{rollout.advantage:.2f}")
        table.add_row(*map(Text, texts))
    console.print(table)


def metrics_text(split: str, metrics: Mapping[str, Any]) -> str:
    """A heading and one aligned line per number, in alphabetical order.

    >>> print(metrics_text("train", {"train_loss": 0.123456, "n": 3}))
    ***** train metrics *****
      n          =      3
      train_loss = 0.1235
    """
    shown = {}
    for name, value in sorted(metrics.items()):
        shown[name] = str(round(value, 4)) if isinstance(value, float) else str(value)
        if name.endswith("_runtime"):
            shown[name] = f"{timedelta(seconds=int(value))}.{int(value % 1 * 100):02d}"
    widths = (max(map(len, shown), default=0), max(map(len, shown.values()), default=0))
    lines = [f"  {name:<{widths[0]}} = {value:>{widths[1]}}" for name, value in shown.items()]
    return "\n".join([f"***** {split} metrics *****", *lines])


def write_metrics(folder: Path, split: str, metrics: Mapping[str, Any], *, combined: bool) -> None:
    """Write `{split}_results.json`; if `combined`, also update `all_results.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {f"{split}_results.json": dict(metrics)}
    if combined:
        file = folder / "all_results.json"
        written[file.name] = (json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}) | dict(metrics)
    for name, numbers in written.items():
        (folder / name).write_text(json.dumps(numbers, indent=4, sort_keys=True), encoding="utf-8")
