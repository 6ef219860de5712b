r"""The built-in reward functions, with the score table of each. The answer rules are those of `extraction` and `math`.

`accuracy`: is the final answer right? Final: last complete `<answer>`, else last complete `\boxed{}`, else what
follows the last `####`, all outside `<think>...</think>`.

| completion (gold 42)                             | score |
|--------------------------------------------------|-------|
| `<answer>42</answer>`, `\boxed{42}`, `#### 42`   | 1.0   |
| another answer, several answers in one           | 0.0   |
| no complete tag, box or `####`; `42` alone       | 0.0   |
| the answer inside `<think>` only                 | 0.0   |
| a task without gold answer                       | None  |

`format`: `<think>...</think>` and then `<answer>...</answer>`, whatever the answer is.

| completion                                       | score |
|--------------------------------------------------|-------|
| each tag once, in order, answer not empty        | 1.0   |
| text before `<think>` or after `</answer>`       | 0.0   |
| a tag missing, repeated or out of order          | 0.0   |

Where the prompt ends with `<think>`, the completion must not open it again.

`think_answer_tags`: 1.0 when `format` gives 1.0 and the answer is right, else 0.0; None without gold answer.

`boxed`: 1.0 when the last complete `\boxed{}` outside `<think>` is right, else 0.0; None without gold answer.

`random`: a number in [0, 1) that has nothing to do with quality: the control experiment. A run with this reward must
not get better; where it does, what you measure is not what you reward.
"""

from collections.abc import Callable, Mapping
from hashlib import blake2b

from paceline.rewards.extraction import (
    CLOSE_ANSWER,
    CLOSE_THINK,
    OPEN_ANSWER,
    OPEN_THINK,
    final_answer,
    last_answer_tag,
    last_boxed,
    prefills_think,
    visible_text,
)
from paceline.rewards.function import RewardFunction
from paceline.rewards.math import math_equal

Columns = list[object]


def accuracy(
    *, prompts: list[str], completions: list[str], answer: list[str | None], **columns: Columns
) -> list[float | None]:
    """1.0 for the right final answer, 0.0 for another or none, None without gold answer."""
    return _judge(final_answer, prompts, completions, answer)


def boxed(
    *, prompts: list[str], completions: list[str], answer: list[str | None], **columns: Columns
) -> list[float | None]:
    r"""1.0 when the last complete `\boxed{}` is right, else 0.0, None without gold answer."""
    return _judge(last_boxed, prompts, completions, answer)


def think_answer_format(*, prompts: list[str], completions: list[str], **columns: Columns) -> list[float]:
    """1.0 for thinking and answer in their tags and nothing around them, else 0.0."""
    return [float(is_think_answer(*pair)) for pair in zip(prompts, completions, strict=True)]


def think_answer_tags(
    *, prompts: list[str], completions: list[str], answer: list[str | None], **columns: Columns
) -> list[float | None]:
    """1.0 for the right answer in the right format, else 0.0, None without gold answer."""
    right = _judge(last_answer_tag, prompts, completions, answer)
    formatted = think_answer_format(prompts=prompts, completions=completions)
    return [None if one is None else one * valid for one, valid in zip(right, formatted, strict=True)]


def random_score(*, prompts: list[str], completions: list[str], **columns: Columns) -> list[float]:
    """A deterministic number in [0, 1) per prompt, completion and position: the control that must not improve."""
    return [_uniform(*row) for row in zip(range(len(prompts)), prompts, completions, strict=True)]


BUILT_IN: Mapping[str, RewardFunction] = {
    "accuracy": accuracy,
    "format": think_answer_format,
    "think_answer_tags": think_answer_tags,
    "boxed": boxed,
    "random": random_score,
}
"""Reward functions by the name that `--reward-funcs` takes."""

NEEDS_ANSWER = frozenset({"accuracy", "think_answer_tags", "boxed"})
"""Those that compare with the gold answer and give None without one."""

_GOLD = {
    "accuracy": "<think>Worked out.</think><answer>{}</answer>",
    "format": "<think>Worked out.</think><answer>{}</answer>",
    "think_answer_tags": "<think>Worked out.</think><answer>{}</answer>",
    "boxed": r"<think>Worked out.</think>\boxed{{{}}}",
}


def gold_completion(name: str, answer: str, *, prompt: str = "") -> str | None:
    """A completion to `prompt` that states `answer` as the built-in function `name` wants it; None for `random`."""
    if name not in _GOLD:
        return None
    text = _GOLD[name].format(answer)
    return text.removeprefix(OPEN_THINK) if prefills_think(prompt) else text


def is_think_answer(prompt: str, completion: str) -> bool:
    """Whether prefilled prompt and completion together are `<think>...</think> ... <answer>...</answer>`."""
    text = (OPEN_THINK if prefills_think(prompt) else "") + completion.strip()
    tags = (OPEN_THINK, CLOSE_THINK, OPEN_ANSWER, CLOSE_ANSWER)
    if any(text.count(tag) != 1 for tag in tags) or not text.startswith(OPEN_THINK) or not text.endswith(CLOSE_ANSWER):
        return False
    in_order = text.index(CLOSE_THINK) < text.index(OPEN_ANSWER)
    return in_order and bool(last_answer_tag(text))


def _judge(
    find: Callable[[str], str | None], prompts: list[str], completions: list[str], answers: list[str | None]
) -> list[float | None]:
    """1.0 or 0.0 for what `find` finds outside the thinking; None where there is no gold answer."""
    return [
        _correctness(find(visible_text(completion, prefilled=prefills_think(prompt))), gold)
        for prompt, completion, gold in zip(prompts, completions, answers, strict=True)
    ]


def _correctness(found: str | None, gold: str | None) -> float | None:
    if gold is None or not gold.strip():
        return None
    return float(found is not None and math_equal(gold, found))


def _uniform(position: int, prompt: str, completion: str) -> float:
    """The first 53 bits of a hash, as a fraction; lone surrogates in a text are hashed like any character."""
    row = f"{position}\x00{len(prompt)}\x00{prompt}{completion}".encode("utf-8", "surrogatepass")
    return (int.from_bytes(blake2b(row, digest_size=8).digest(), "big") >> 11) / 2**53
