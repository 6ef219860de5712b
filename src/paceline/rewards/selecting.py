"""Reward functions by task: a dataset's column `reward_funcs` names those that apply to a row.

    {"question": "...", "answer": "42", "reward_funcs": ["accuracy", "format"]}

A row without the column, or with null in it, is graded by all functions of the run. A function that a row does not name
is not called on it, and its value is None there. Names are those of `--reward-funcs`, with or without parameters.
"""

from collections.abc import Iterable, Mapping, Sequence

from paceline.chat.thinking import prefills_think, visible_text
from paceline.config.reading import base_name
from paceline.data.extraction.answers import final_answer
from paceline.errors import DataError
from paceline.rewards.function import BuiltIn, RewardFunction
from paceline.types import FinishReason, RowCheck, Task

COLUMN = "reward_funcs"


def is_for(task: Task, name: str) -> bool:
    """Return whether the reward function `name` is to grade completions of this task."""
    chosen = _chosen(task)
    return chosen is None or name in chosen or base_name(name) in chosen


def check_selections(names: Iterable[str], tasks: Sequence[Task]) -> None:
    """Raise DataError for a row that names a function which the run does not have, or none at all."""
    known = {spelling for name in names for spelling in (name, base_name(name))}
    for task in tasks:
        chosen = _chosen(task)
        unknown = [name for name in chosen or () if name not in known]
        if unknown or chosen == ():
            raise DataError(
                f"row {task.task_id}: column {COLUMN!r} must name functions of --reward-funcs "
                f"({', '.join(sorted(known))}), got {unknown[0] if unknown else 'none'!r}; correct the row, leave the "
                "cell empty (null) for all of them, or rename the column"
            )


def _chosen(task: Task) -> tuple[str, ...] | None:
    """Return the names in the row; text is split at commas and spaces."""
    value = task.columns.get(COLUMN)
    if isinstance(value, str):
        return tuple(value.replace(",", " ").split())
    if isinstance(value, list | tuple):
        return tuple(map(str, value))
    return None if value is None else (str(value),)


def row_check(functions: Mapping[str, RewardFunction]) -> RowCheck | None:
    """Combine the row checks of these functions; None where no function has one."""
    checks = [f.check_row for f in functions.values() if isinstance(f, BuiltIn) and f.check_row is not None]
    if not checks:
        return None

    def check_all(columns: Mapping[str, object], row_id: str) -> None:
        for check in checks:
            check(columns, row_id)

    return check_all


def stated_answer(
    functions: Mapping[str, RewardFunction], task: Task, text: str, finish_reason: FinishReason
) -> str | None:
    """Return the answer of a completion as the first function that reads one does, else as `accuracy` does; or None."""
    for function in functions.values():
        if isinstance(function, BuiltIn) and function.find is not None:
            find = function.find_in_cut if function.find_in_cut and finish_reason == "length" else function.find
            return find(task.prompt, text)
    return final_answer(visible_text(text, prefilled=prefills_think(task.prompt)))


def has_format(functions: Mapping[str, RewardFunction], task: Task, text: str) -> bool | None:
    """Return whether a completion has every format that functions ask for; None if no function asks for one."""
    verdicts = [
        function.is_formed(task.prompt, text)
        for name, function in functions.items()
        if isinstance(function, BuiltIn) and function.is_formed is not None and is_for(task, name)
    ]
    return all(verdicts) if verdicts else None
