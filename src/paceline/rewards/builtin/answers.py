"""True if the answer is right, in any style or in one that is asked for: accuracy, boxed, think_answer_tags, format.

What makes a format valid stands in one table for all styles, in `docs/rewards.md`.
"""

from collections.abc import Callable

from paceline.data.extraction.boxes import last_boxed
from paceline.data.extraction.final import final_answer
from paceline.data.extraction.tags import CLOSE_ANSWER, OPEN_ANSWER, last_answer_tag, stand_once_in_order
from paceline.data.extraction.thinking import CLOSE_THINK, OPEN_THINK, prefill
from paceline.rewards.builtin.correctness import (
    JUNK,
    Correctness,
    Find,
    after_thought,
    begin_correctness,
    correctness,
    misstating,
    said,
    stating,
)
from paceline.rewards.function import BuiltIn, RewardContext


def accuracy(context: RewardContext, *, plain: bool = False) -> BuiltIn:
    r"""Is the final answer right? The last complete `<answer>`, else the last complete box, else the last `####`.

    | completion (gold 42)                             | score |
    |--------------------------------------------------|-------|
    | `<answer>42</answer>`, `\boxed{42}`, `#### 42`   | 1.0   |
    | another answer, several answers in one           | 0.0   |
    | no complete tag, box or `####`; `42` alone       | 0.0   |
    | the answer inside `<think>` or `<reasoning>` only| 0.0   |
    | a task without gold answer                       | None  |

    `plain`: a completion with no such mark answers with its last line: what follows the last `answer is`, `answer:` or
    `=` in it, and of that the number, where it is the only one. For models that have not learned any format: without
    it they score 0.0 throughout, and nothing is learned.
    """

    def find(prompt: str, completion: str) -> str | None:
        return final_answer(said(prompt, completion), plain=plain)

    return judging("accuracy", find, _in_tags)


def boxed(context: RewardContext) -> BuiltIn:
    r"""1.0 when the last complete `\boxed{}` outside the thinking is right, else 0.0; None without gold answer."""

    def find(prompt: str, completion: str) -> str | None:
        return last_boxed(said(prompt, completion))

    return judging(
        "boxed", find, lambda answer: rf"\boxed{{{answer}}}", is_formed=lambda *pair: find(*pair) is not None
    )


def think_answer_tags(context: RewardContext) -> BuiltIn:
    """1.0 when `format` gives 1.0 and the answer in the tags is right, else 0.0; None without gold answer."""

    def find(prompt: str, completion: str) -> str | None:
        return last_answer_tag(said(prompt, completion)) if is_think_answer(prompt, completion) else None

    return judging("think_answer_tags", find, _in_tags, is_formed=is_think_answer)


def think_answer_format(context: RewardContext) -> BuiltIn:
    """`format`: `<think>...</think>` and then `<answer>...</answer>`, whatever the answer is.

    | completion                                       | score |
    |--------------------------------------------------|-------|
    | each tag once, in order, answer not empty        | 1.0   |
    | text before `<think>` or after `</answer>`       | 0.0   |
    | a tag missing, repeated or out of order          | 0.0   |

    Where the prompt ends with `<think>`, the completion must not open it again.
    """

    def call(*, prompts: list[str], completions: list[str], **columns: object) -> list[float]:
        return [float(is_think_answer(*pair)) for pair in zip(prompts, completions, strict=True)]

    return BuiltIn(
        name="format",
        call=call,
        gold=lambda task: after_thought(task, _in_tags(task.answer or "42")),
        junk=lambda task: JUNK,
        is_formed=is_think_answer,
    )


def is_think_answer(prompt: str, completion: str) -> bool:
    """Return whether prefilled prompt and completion together are `<think>...</think> ... <answer>...</answer>`."""
    text = prefill(prompt).strip() + completion.strip()
    in_order = stand_once_in_order(text, (OPEN_THINK, CLOSE_THINK, OPEN_ANSWER, CLOSE_ANSWER))
    return in_order and text.startswith(OPEN_THINK) and text.endswith(CLOSE_ANSWER) and bool(last_answer_tag(text))


def judging(
    name: str, find: Find, statement: Callable[[str], str], *, is_formed: Callable[[str, str], bool] | None = None
) -> BuiltIn:
    """The function that compares what `find` finds with the gold answer; `statement` puts an answer where it looks."""

    def call(
        *, prompts: list[str], completions: list[str], answer: list[str | None], **columns: object
    ) -> list[Correctness]:
        return correctness(find, prompts, completions, answer)

    def begin(*, prompts: list[str], completions: list[str], answer: list[str | None], **columns: object) -> None:
        begin_correctness(find, prompts, completions, answer)

    return BuiltIn(
        name=name,
        call=call,
        begin=begin,
        gold=stating(statement),
        junk=misstating(statement),
        find=find,
        is_formed=is_formed,
    )


def _in_tags(answer: str) -> str:
    return f"{OPEN_ANSWER}{answer}{CLOSE_ANSWER}"
