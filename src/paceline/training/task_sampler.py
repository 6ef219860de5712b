"""Tasks of the next step: the data order, and the run's position in it."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.config.sections import LoopConfig
from paceline.data.rows import task_index
from paceline.data.tasks import LeftOut
from paceline.errors import DataError
from paceline.types import Task


@dataclass(kw_only=True, slots=True)
class TaskSampler:
    """Hands out tasks in the data order; `position` counts all that were taken, refills and left-out rows included."""

    tasks: Sequence[Task]
    seed: int
    shuffle: bool
    position: int = 0

    def take(self, count: int) -> list[tuple[Task, int]]:
        """Take the next `count` tasks, each with the number of its earlier occurrences.

        Raises:
            DataError: a row of a large dataset stops the run, or a whole pass over it gave no task.
        """
        return [self._next() for _ in range(count)]

    def _next(self) -> tuple[Task, int]:
        size, start = len(self.tasks), self.position
        for at in range(start, start + size):
            self.position = at + 1
            try:
                return self.tasks[task_index(at, size=size, seed=self.seed, shuffle=self.shuffle)], at // size
            except LeftOut as error:
                last = error
        raise DataError(f"none of the {size} rows can be used; the last: {last}")


def prompts_of_step(number: int, loop: LoopConfig, *, num_tasks: int) -> int:
    """Return the number of prompts of step 1, 2, ...: the last step of a run in epochs takes the rest.

    By the number of the step, as refills move the position on by as many tasks as they need.
    """
    if loop.max_steps is not None:
        return loop.prompts_per_step
    left = round(loop.num_epochs * num_tasks) - (number - 1) * loop.prompts_per_step
    return max(1, min(loop.prompts_per_step, left))
