"""Reward functions: from a task and a completion to a number.

function.py    what a reward function is
builtin.py     accuracy, format, think_answer_tags, boxed, random
extraction.py  where the answer stands in a completion
math.py        whether an answer equals the gold answer (notation, quantities, symbolic)
resolving.py   from a name to a function
scoring.py     grade a batch; failures are counted, never zero
startup.py     the test before the first step
prompts.py     the system message that asks for the format
"""

from paceline.rewards.builtin import BUILT_IN, gold_completion
from paceline.rewards.function import RewardFunction
from paceline.rewards.math import math_equal
from paceline.rewards.prompts import default_system_prompt
from paceline.rewards.resolving import resolve
from paceline.rewards.scoring import Scores, check_failure_rate, combine, score
from paceline.rewards.startup import self_test

__all__ = [
    "RewardFunction",
    "BUILT_IN",
    "resolve",
    "default_system_prompt",
    "Scores",
    "score",
    "combine",
    "check_failure_rate",
    "self_test",
    "gold_completion",
    "math_equal",
]
