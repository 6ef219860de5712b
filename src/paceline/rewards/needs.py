"""What a built-in reward function needs of a dataset's rows: gold answers, tool calls, test cases."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paceline.rewards.builtin.correctness import is_blank, unverifiable_answers
from paceline.rewards.builtin.tools import has_calls, unreadable_calls
from paceline.rewards.programs.cases import has_cases
from paceline.types import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """One kind of thing that rows give."""

    does: str
    """What a function does with it, after its name: `compares with gold answers`."""
    remedy: str
    """What to do where no row has it."""
    repair: str
    """What to do with rows that have it and cannot be graded by it."""
    is_met: Callable[[Task], bool]
    doubtful: Callable[[Sequence[Task]], list[int]] = lambda tasks: []
    """Positions of tasks that have it in a form that cannot be recognised in a completion."""


ANSWERS = Need(
    does="compares with gold answers",
    remedy="name their column with --answer-column, or choose another reward function",
    repair="correct these answers, name the right column with --answer-column, or choose another reward function",
    is_met=lambda task: not is_blank(task.answer),
    doubtful=lambda tasks: unverifiable_answers([task.answer for task in tasks]),
)
CALLS = Need(
    does="compares with tool calls",
    remedy="give them in the column tool_calls, name their column with --answer-column, or choose another function",
    repair="correct these calls, or choose another reward function",
    is_met=has_calls,
    doubtful=unreadable_calls,
)
CASES = Need(
    does="runs test cases",
    remedy="give them in one of the columns that docs/rewards.md names, or choose another reward function",
    repair="correct the tests or the solutions of these rows, or choose another reward function",
    is_met=lambda task: has_cases(task.columns),
)

NEEDS: Mapping[str, Need] = {
    "accuracy": ANSWERS,
    "think_answer_tags": ANSWERS,
    "boxed": ANSWERS,
    "gsm8k": ANSWERS,
    "cosine": ANSWERS,
    "tool_call": CALLS,
    "code": CASES,
}
"""By the name of the function; one that is not here can grade any row."""
