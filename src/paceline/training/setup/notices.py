"""What a person should know of the data and of the graders before any number is read."""

from collections.abc import Collection, Iterable

from paceline.data.rows import SAMPLE
from paceline.data.tasks import TaskSet
from paceline.rewards.function import BuiltIn, RewardFunction
from paceline.training.evaluation import AccuracyEvaluator
from paceline.training.setup.evaluators import Evaluator


def of_rows(tasks: TaskSet) -> list[str]:
    """What was looked at of a large dataset, and what was left out or cut of what was."""
    lines = []
    if tasks.is_large:
        lines.append(
            f"{len(tasks.tasks):,} rows: {SAMPLE:,} spread evenly over them were looked at before the first step, and "
            "what is said of rows and prompts is of these; every other is looked at when it is taken"
        )
    if tasks.dropped or tasks.truncated:
        lines.append(f"prompts above --max-prompt-length: {tasks.dropped} dropped, {tasks.truncated} truncated")
    if tasks.skipped:
        lines.append(f"rows skipped by --on-bad-row skip: {len(tasks.skipped)}; the first: {tasks.skipped[0]}")
    return lines


def of_graders(functions: Iterable[RewardFunction]) -> list[str]:
    """What is in force for built-in functions that run something: how programs are isolated."""
    return [one.describe() for one in functions if isinstance(one, BuiltIn) and one.describe is not None]


def of_held_out(evaluators: Iterable[Evaluator], *, known: Collection[str]) -> list[str]:
    """What was left out of each held-out set, under its name, what else is not `known` of its grader, and how small a
    difference it can show."""
    sets = [evaluator.eval_set for evaluator in evaluators if isinstance(evaluator, AccuracyEvaluator)]
    notes = [f"{one.name}: {note}" for one in sets for note in one.notes if note not in known]
    return [*notes, *(one.reach for one in sets)]
