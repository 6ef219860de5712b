"""The built-in reward functions by name. Each file of `rewards` that makes some holds their score tables."""

from collections.abc import Callable, Mapping

from paceline.rewards.builtin.answers import accuracy, boxed, think_answer_format, think_answer_tags
from paceline.rewards.builtin.code import code
from paceline.rewards.builtin.control import random_score
from paceline.rewards.builtin.gsm8k import gsm8k
from paceline.rewards.builtin.length import cosine, soft_overlong
from paceline.rewards.builtin.repetition import repetition
from paceline.rewards.builtin.tools import react_format, tool_call
from paceline.rewards.function import BuiltIn

Maker = Callable[..., BuiltIn]
"""Called with a `RewardContext`, and the parameters of the name as keywords."""

BUILT_IN: Mapping[str, Maker] = {
    "accuracy": accuracy,
    "format": think_answer_format,
    "think_answer_tags": think_answer_tags,
    "boxed": boxed,
    "gsm8k": gsm8k,
    "cosine": cosine,
    "repetition": repetition,
    "soft_overlong": soft_overlong,
    "react_format": react_format,
    "tool_call": tool_call,
    "code": code,
    "random": random_score,
}
"""Makers of reward functions by the name that `--reward-funcs` takes."""
