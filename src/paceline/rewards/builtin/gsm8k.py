"""The reward of the from-scratch tutorial on GSM8K: correctness and format in one sum."""

import re

from paceline.data.extraction.tags import CLOSE_ANSWER, OPEN_ANSWER, last_answer_tag
from paceline.data.extraction.thinking import CLOSE_REASONING, OPEN_REASONING, prefill, visible_text
from paceline.rewards.builtin.correctness import (
    JUNK,
    WRONG_ANSWER,
    Correctness,
    begin_correctness,
    correctness,
    is_blank,
    said,
)
from paceline.rewards.function import BuiltIn, RewardContext
from paceline.types import Task

TAGS = (OPEN_REASONING, CLOSE_REASONING, OPEN_ANSWER, CLOSE_ANSWER)
SAME_TEXT, EQUAL, PER_TAG = 2.0, 1.5, 0.2

_TAG = re.compile("(</?(?:reasoning|answer)>)")


def gsm8k(context: RewardContext) -> BuiltIn:
    """Is the answer right, 2.0 at most, plus 0.2 for each of `<reasoning> </reasoning> <answer> </answer>`.

    | completion (gold 42)                                           | score     |
    |----------------------------------------------------------------|-----------|
    | `<reasoning>6 * 7</reasoning><answer>42</answer>`              | 2.0 + 0.8 |
    | the same with `42.0` or `$42`: equal as mathematics            | 1.5 + 0.8 |
    | the same with `41`                                             | 0.8       |
    | `<answer>42</answer>`                                          | 2.0 + 0.4 |
    | `<reasoning>6 * 7<answer>42</answer>`: the reasoning never ends| 0.6       |
    | `<reasoning></reasoning><answer>...</answer>`: tags, no content| 0.0       |
    | `42` alone                                                     | 0.0       |
    | a task without gold answer                                     | None      |

    A tag counts when it stands exactly once, after those before it that count, and a letter or digit stands next to
    it, before another tag: after an opening tag, before a closing one. The answer is the last complete `<answer>`
    outside the reasoning. Text around the tags is free.

    Source: A. Burkov's notebook "GRPO From Scratch", which counts a tag wherever it stands, gives 1.5 where the only
    number in the two texts is the same, and takes no answer for the right one where a row has none.
    """

    def call(
        *, prompts: list[str], completions: list[str], answer: list[str | None], **columns: object
    ) -> list[Correctness]:
        right = correctness(_answer, prompts, completions, answer)
        rows = zip(right, prompts, completions, answer, strict=True)
        return [
            _score(one, prompt, completion, gold or "") if isinstance(one, float) else one
            for one, prompt, completion, gold in rows
        ]

    def begin(*, prompts: list[str], completions: list[str], answer: list[str | None], **columns: object) -> None:
        begin_correctness(_answer, prompts, completions, answer)

    full = SAME_TEXT + 4 * PER_TAG
    return BuiltIn(
        name="gsm8k",
        call=call,
        begin=begin,
        gold=_gold,
        junk=_junk,
        maximum=full,
        right=EQUAL,
        find=_answer,
        is_formed=lambda *pair: counted_tags(*pair) == len(TAGS),
    )


def counted_tags(prompt: str, completion: str) -> int:
    """How many of the four tags count; one that the prompt has opened is among them."""
    pieces = _TAG.split(visible_text(prefill(prompt) + completion, tags=("think",)))
    counted, last = 0, 0
    for tag in TAGS:
        places = [place for place in range(1, len(pieces), 2) if pieces[place] == tag]
        if len(places) == 1 and places[0] > last:
            content = pieces[places[0] + (-1 if tag.startswith("</") else 1)]
            if any(map(str.isalnum, content)):
                counted, last = counted + 1, places[0]
    return counted


def _answer(prompt: str, completion: str) -> str | None:
    return last_answer_tag(said(prompt, completion))


def _score(right: float, prompt: str, completion: str, gold: str) -> float:
    is_same = right > 0 and _answer(prompt, completion) == gold.strip()
    correct = (SAME_TEXT if is_same else EQUAL) if right > 0 else 0.0
    return correct + PER_TAG * counted_tags(prompt, completion)


def _gold(task: Task) -> str | None:
    return None if task.answer is None or is_blank(task.answer) else _completion(task, task.answer.strip())


def _junk(task: Task) -> tuple[str, ...]:
    return (*JUNK, _completion(task, WRONG_ANSWER))


def _completion(task: Task, answer: str) -> str:
    """A completion that states this answer, whatever thinking the prompt has opened."""
    opened = prefill(task.prompt).strip()
    begin = {"": OPEN_REASONING, OPEN_REASONING: ""}.get(opened, f"Worked out.</think>{OPEN_REASONING}")
    return f"{begin}Worked out.{CLOSE_REASONING}{OPEN_ANSWER}{answer}{CLOSE_ANSWER}"
