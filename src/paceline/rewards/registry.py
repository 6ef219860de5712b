"""The built-in reward functions by name. Each file of `rewards` that makes some holds their score tables."""

from collections.abc import Callable, Mapping
from hashlib import blake2b

from paceline.rewards.builtin.answers import accuracy, boxed, think_answer_format, think_answer_tags
from paceline.rewards.builtin.code import code
from paceline.rewards.builtin.gsm8k import gsm8k
from paceline.rewards.builtin.length import cosine, soft_overlong
from paceline.rewards.builtin.repetition import repetition
from paceline.rewards.builtin.tools import react_format, tool_call
from paceline.rewards.function import BuiltIn, RewardContext


def random_score(context: RewardContext) -> BuiltIn:
    """`random`: a number in [0, 1) that has nothing to do with quality.

    A run with this reward must not get better; where it does, what you measure is not what you reward. The number
    follows from prompt, completion and position in the batch.
    """

    def call(*, prompts: list[str], completions: list[str], **columns: object) -> list[float]:
        return [_uniform(*row) for row in zip(range(len(prompts)), prompts, completions, strict=True)]

    return BuiltIn(name="random", call=call, gold=None)


def _uniform(position: int, prompt: str, completion: str) -> float:
    """The first 53 bits of a hash, as a fraction; lone surrogates in a text are hashed like any character."""
    row = f"{position}\x00{len(prompt)}\x00{prompt}{completion}".encode("utf-8", "surrogatepass")
    return (int.from_bytes(blake2b(row, digest_size=8).digest(), "big") >> 11) / 2**53


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
