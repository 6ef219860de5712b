"""A step's completions as a table in the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.training.rollouts.producer import RolloutBatch


def print_completions(
    console: Console, batch: RolloutBatch, *, step: int, limit: int | None, columns: Mapping[str, Sequence[Any]]
) -> None:
    """The first `limit` completions (None: all) with prompt, rewards and advantage; `columns` are further ones."""
    rows = [(group.task, rollout) for group in batch.groups for rollout in group.rollouts]
    names = list(batch.scores.values)
    table = Table(title=f"step {step}", show_lines=True)
    for heading in ("prompt", "completion", *names, *columns, "advantage"):
        table.add_column(heading)
    for place, (task, rollout) in enumerate(rows[:limit]):
        scores = [_number(rollout.rewards[name]) for name in names]
        more = [str(values[place]) if place < len(values) else "" for values in columns.values()]
        texts = (task.prompt, rollout.completion.text, *scores, *more, f"{rollout.advantage:.2f}")
        table.add_row(*map(Text, texts))
    console.print(table)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"
