"""Prompts that stand in more than one row: of a dataset, or of what is trained on and what is held out."""

import re
from collections.abc import Sequence

from paceline.types import Task

_DRAWN_AGAIN = re.compile(r"#\d+$")
"""End of the name of a row that `--dataset FILE#N` takes more than once."""


def repeated_prompts(tasks: Sequence[Task]) -> list[str]:
    """Sentences on rows that repeat an earlier prompt and answer, and on those that answer it differently."""
    first, same, other = dict[str, Task](), list[tuple[Task, Task]](), list[tuple[Task, Task]]()
    for task in tasks:
        if _DRAWN_AGAIN.search(task.task_id):
            continue
        before = first.setdefault(task.prompt, task)
        if before is not task:
            (same if before.answer == task.answer else other).append((before, task))
    sentences = []
    if same:
        before, task = same[0]
        sentences.append(
            f"{len(same)} of {len(tasks)} rows repeat the prompt and the answer of an earlier one ({task.task_id} "
            f"those of {before.task_id}) and count as often; remove them where that is not meant"
        )
    if other:
        before, task = other[0]
        sentences.append(
            f"{len(other)} of {len(tasks)} rows have an earlier one's prompt and another answer ({before.task_id} has "
            f"{before.answer!r}, {task.task_id} has {task.answer!r}); correct or remove one of each"
        )
    return sentences


def also_trained_on(held_out: Sequence[Task], training: Sequence[Task]) -> list[str]:
    """A sentence where prompts of a held-out set are trained on too; none where there are none."""
    trained = {task.prompt: task.task_id for task in reversed(training)}
    found = [task for task in held_out if task.prompt in trained]
    if not found:
        return []
    first = found[0]
    return [
        f"{len(found)} of {len(held_out)} prompts are trained on too ({first.task_id} is {trained[first.prompt]}): its "
        "accuracy also measures what was learnt by heart; keep these rows out of one of the two"
    ]
