"""The system message that tells a model which answer format its reward function reads."""

from collections.abc import Sequence

from paceline.rewards.parameters import base_name

_THINK_ANSWER = (
    "Reason about the problem first, between <think> and </think>. Then give the final answer alone, between <answer> "
    "and </answer>, and stop. Use each tag exactly once: <think> your reasoning </think> <answer> your answer </answer>"
)
_BOXED = r"Reason step by step. End with the final answer, and nothing but the answer, inside \boxed{}."

_REASONING_ANSWER = (
    "Write your reasoning between <reasoning> and </reasoning>, then the final answer alone between <answer> and "
    "</answer>, each tag on a line of its own and used once:\n"
    "<reasoning>\nyour reasoning\n</reasoning>\n<answer>\nyour answer\n</answer>"
)

_DEFAULTS = {
    "format": _THINK_ANSWER,
    "think_answer_tags": _THINK_ANSWER,
    "boxed": _BOXED,
    "gsm8k": _REASONING_ANSWER,
}


def default_system_prompt(names: Sequence[str]) -> str | None:
    """The default system message for these reward functions: that of the first one that has one.

    None where no function asks for a format: `accuracy` accepts several, a function of your own says nothing of its,
    and how tools are called is up to the chat template.
    """
    return next((_DEFAULTS[base] for base in map(base_name, names) if base in _DEFAULTS), None)
