"""What a person should know of the data and of the graders before any number is read."""

from collections.abc import Iterable

from paceline.data import TaskSet
from paceline.rewards import BuiltIn, RewardFunction


def of_rows(tasks: TaskSet) -> list[str]:
    """What was left out of a dataset or cut."""
    lines = []
    if tasks.dropped or tasks.truncated:
        lines.append(f"prompts above --max-prompt-length: {tasks.dropped} dropped, {tasks.truncated} truncated")
    if tasks.skipped:
        lines.append(f"rows skipped by --on-bad-row skip: {len(tasks.skipped)}; the first: {tasks.skipped[0]}")
    return lines


def of_graders(functions: Iterable[RewardFunction]) -> list[str]:
    """What is in force for built-in functions that run something: how programs are isolated."""
    return [one.describe() for one in functions if isinstance(one, BuiltIn) and one.describe is not None]
