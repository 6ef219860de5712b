"""Reward functions: from a task and a completion to a number.

function.py    what a reward function is, and what a built-in one is beyond that
builtin/       the built-in ones, each with its score table; registry.py has their names
maths/         whether an answer equals the gold answer
programs/      tests of a row, and verdicts on what a program made of them
scoring/       a batch of completions to scores, the one place where a grader may fail
resolving.py   from a name to a function (parameters.py: `cosine(max_length=512)`)
model.py       a sequence-classification model as a reward function (model_files.py: what its files tell without torch)
selecting.py   which functions a row is for
reading.py     the answer and the format that functions read in a completion
startup.py     the test before the first step (needs.py, rows.py: what functions ask of rows; trial.py: of your own)
prompts.py     the system message that asks for a format
"""

from typing import TYPE_CHECKING, Any

from paceline.rewards.function import (
    BuiltIn,
    Grade,
    RewardContext,
    RewardFunction,
    compares_group,
    needs_group,
    right_of,
)
from paceline.rewards.maths.verdicts import math_equal, math_verdicts
from paceline.rewards.model_files import check_reward_model, reward_model_files
from paceline.rewards.parameters import base_name
from paceline.rewards.prompts import default_system_prompt
from paceline.rewards.reading import has_format, stated_answer
from paceline.rewards.registry import BUILT_IN
from paceline.rewards.resolving import resolve, right_from, source_file
from paceline.rewards.rows import row_check
from paceline.rewards.scoring.early import early_start
from paceline.rewards.scoring.grading import Tally
from paceline.rewards.scoring.merging import merge_scores, part_of
from paceline.rewards.scoring.scores import Scores, check_any_reward, check_failure_rate, combine, score
from paceline.rewards.selecting import check_selections
from paceline.rewards.startup import self_test, unmet_needs

if TYPE_CHECKING:
    from paceline.rewards.model import RewardModel, load_reward_model

__all__ = [
    "RewardFunction",
    "Grade",
    "needs_group",
    "compares_group",
    "right_of",
    "right_from",
    "stated_answer",
    "has_format",
    "BuiltIn",
    "BUILT_IN",
    "RewardContext",
    "resolve",
    "source_file",
    "base_name",
    "RewardModel",
    "load_reward_model",
    "check_reward_model",
    "reward_model_files",
    "default_system_prompt",
    "row_check",
    "check_selections",
    "self_test",
    "unmet_needs",
    "early_start",
    "Scores",
    "Tally",
    "score",
    "combine",
    "merge_scores",
    "part_of",
    "check_any_reward",
    "check_failure_rate",
    "math_equal",
    "math_verdicts",
]


def __getattr__(name: str) -> Any:
    """Reward models bring torch with them, which takes seconds: imported when they are first asked for."""
    if name in ("RewardModel", "load_reward_model"):
        from paceline.rewards import model

        return getattr(model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
