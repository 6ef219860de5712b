"""Where tasks come from: rows of a file, directory, Hub dataset or generator, and their order.

load_rows -> Row -> screen -> build_tasks -> Task, taken in the order of task_index
"""

from paceline.data.fingerprint import TasksFingerprint, tasks_difference, tasks_fingerprint
from paceline.data.formats import problem
from paceline.data.lengths import length_histogram
from paceline.data.order import task_index
from paceline.data.rows import Row
from paceline.data.screening import screen
from paceline.data.sources import has_split, load_rows
from paceline.data.system_message import system_prompt
from paceline.data.tasks import TaskSet, build_tasks

__all__ = [
    "Row",
    "load_rows",
    "has_split",
    "problem",
    "screen",
    "system_prompt",
    "build_tasks",
    "TaskSet",
    "TasksFingerprint",
    "tasks_fingerprint",
    "tasks_difference",
    "length_histogram",
    "task_index",
]
