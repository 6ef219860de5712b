"""Where tasks come from: rows of a file, directory, Hub dataset or generator, and their order.

load_rows -> Row -> screen -> build_tasks -> Task, taken in the order of task_index

Up to `WHOLE` rows all of it happens before the first step; of more rows a sample is looked at then, and each is read,
screened and tokenised when it is taken.
"""

from paceline.data.fingerprint import TasksFingerprint, tasks_difference, tasks_fingerprint
from paceline.data.formats import IMAGE_COLUMNS, problem
from paceline.data.lengths import length_histogram
from paceline.data.order import task_index
from paceline.data.rows import SAMPLE, WHOLE, Row, RowsOnDemand, spread, spread_places
from paceline.data.screening import screen
from paceline.data.sources import has_split, is_file, load_rows
from paceline.data.system_message import system_prompt
from paceline.data.tables import read_ahead
from paceline.data.tasks import LargeTasks, LeftOut, TaskSet, build_tasks

__all__ = [
    "IMAGE_COLUMNS",
    "Row",
    "RowsOnDemand",
    "WHOLE",
    "SAMPLE",
    "spread",
    "spread_places",
    "read_ahead",
    "load_rows",
    "has_split",
    "is_file",
    "problem",
    "screen",
    "system_prompt",
    "build_tasks",
    "TaskSet",
    "LargeTasks",
    "LeftOut",
    "TasksFingerprint",
    "tasks_fingerprint",
    "tasks_difference",
    "length_histogram",
    "task_index",
]
