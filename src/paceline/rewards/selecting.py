"""Reward functions by task: a dataset's column `reward_funcs` names those that apply to a row.

    {"question": "...", "answer": "42", "reward_funcs": ["accuracy", "format"]}

A row without the column, or with null in it, is for all functions of the run. A function that a row is not for is not
called on it, and gives None there. Names are those of `--reward-funcs`, with or without their parameters.
"""

from collections.abc import Iterable, Sequence

from paceline.errors import DataError
from paceline.rewards.parameters import base_name
from paceline.types import Task

COLUMN = "reward_funcs"


def is_for(task: Task, name: str) -> bool:
    """Return whether the reward function `name` is to grade completions of this task."""
    chosen = _chosen(task)
    return chosen is None or name in chosen or base_name(name) in chosen


def check_selections(names: Iterable[str], tasks: Sequence[Task]) -> None:
    """Refuse rows that name a function which the run does not have, or none at all.

    Raises:
        DataError: it names row, value and the functions there are.
    """
    known = {spelling for name in names for spelling in (name, base_name(name))}
    for task in tasks:
        chosen = _chosen(task)
        if chosen is None:
            continue
        unknown = [name for name in chosen if name not in known]
        if unknown or not chosen:
            raise DataError(
                f"row {task.task_id}: column {COLUMN!r} must name functions of --reward-funcs "
                f"({', '.join(sorted(known))}), got {unknown[0] if unknown else 'none'!r}; correct the row, leave the "
                "cell empty (null) for all of them, or rename the column"
            )


def _chosen(task: Task) -> tuple[str, ...] | None:
    """The names that the row gives; text is split at commas and spaces."""
    value = task.columns.get(COLUMN)
    if value is None:
        return None
    if isinstance(value, str):
        return tuple(value.replace(",", " ").split())
    if isinstance(value, list | tuple):
        return tuple(str(one) for one in value)
    return (str(value),)
