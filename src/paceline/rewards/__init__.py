"""Reward functions: from a task and a completion to a number.

function.py    what a reward function is
builtin.py     accuracy, format, think_answer_tags, boxed, random
extraction.py  where the answer stands in a completion
math.py        whether an answer equals the gold answer (notation, quantities, symbolic)
resolving.py   from a name to a function
model.py       a sequence-classification model as a reward function (model_files.py: what its files tell without torch)
calling.py     one call of each function, async ones together
results.py     from what a function returned to numbers
scoring.py     grade a batch; failures are counted, never zero
startup.py     the test before the first step (trial.py: what a function of the user's own returns)
merging.py     the scores of several batches as one
prompts.py     the system message that asks for the format
"""

from typing import TYPE_CHECKING, Any

from paceline.rewards.builtin import BUILT_IN, gold_completion
from paceline.rewards.function import RewardFunction
from paceline.rewards.math import math_equal
from paceline.rewards.merging import merge_scores
from paceline.rewards.model_files import check_reward_model
from paceline.rewards.prompts import default_system_prompt
from paceline.rewards.resolving import resolve
from paceline.rewards.scoring import Scores, check_any_reward, check_failure_rate, combine, score
from paceline.rewards.startup import self_test

if TYPE_CHECKING:
    from paceline.rewards.model import RewardModel, load_reward_model

__all__ = [
    "RewardFunction",
    "BUILT_IN",
    "resolve",
    "RewardModel",
    "load_reward_model",
    "check_reward_model",
    "default_system_prompt",
    "Scores",
    "score",
    "combine",
    "merge_scores",
    "check_any_reward",
    "check_failure_rate",
    "self_test",
    "gold_completion",
    "math_equal",
]


def __getattr__(name: str) -> Any:
    """Reward models bring torch with them, which takes seconds: imported when they are first asked for."""
    if name in ("RewardModel", "load_reward_model"):
        from paceline.rewards import model

        return getattr(model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
