"""Rewards for a right answer, in any format or in one: accuracy, boxed, think_answer_tags, format, gsm8k.

What makes a format valid stands in one table for all styles, in `docs/rewards.md`.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from paceline.chat.thinking import (
    CLOSE_REASONING,
    CLOSE_THINK,
    OPEN_REASONING,
    OPEN_THINK,
    prefill,
    prefills_think,
    visible_text,
)
from paceline.data.answers import (
    CLOSE_ANSWER,
    OPEN_ANSWER,
    final_answer,
    last_answer_tag,
    last_boxed,
    stand_once_in_order,
)
from paceline.errors import RewardError
from paceline.rewards.function import CHOOSE, FORM_ALONE, BuiltIn, Need, RewardContext
from paceline.rewards.maths.choices import is_choice, of_prompt
from paceline.rewards.maths.expressions import EqualityVerdict
from paceline.rewards.maths.verdicts import begin_verdicts, math_outcomes, unverifiable
from paceline.types import Task

Find = Callable[[str, str], str | None]
"""Maps prompt and completion to the answer that the completion states, or None."""
Scoring = Callable[[float, str, str, str, int], float]
"""Maps right (1.0) or wrong (0.0), prompt, completion, gold answer and length in tokens to a score."""

ANSWERS = Need(
    does="compares with gold answers",
    remedies=("name their column with --answer-column", CHOOSE),
    repairs=("correct these answers", "name the right column with --answer-column", CHOOSE),
    is_met=lambda task: not is_blank(task.answer),
    doubtful=lambda tasks: unverifiable([task.answer or "" for task in tasks]),
)
ANY_FORM = ("box", "answer tags", "think and answer tags", "reasoning and answer tags", "hashes")
WRONG_ANSWER = "none of this is an answer"
JUNK = ("", "I am not sure.", "<answer></answer>", r"\boxed{}", "####")
"""Completions that state no answer, whatever the question."""


def visible(prompt: str, completion: str) -> str:
    """Return the completion without its thinking, which the prompt may have opened."""
    return visible_text(completion, prefilled=prefills_think(prompt))


def find_answer(prompt: str, completion: str, *, plain: bool = False) -> str | None:
    """Return the answer that a completion states, in any format; `plain`: see `accuracy`."""
    return final_answer(visible(prompt, completion), plain=plain)


def is_blank(answer: str | None) -> bool:
    """Return whether a row has no gold answer."""
    return answer is None or not answer.strip()


def after_thought(task: Task, statement: str) -> str:
    """Make a completion that thinks, in a `<think>` that the prompt may have opened, and then states this."""
    opening = "" if prefill(task.prompt) else OPEN_THINK
    return f"{opening}Worked out.</think>{statement}"


def judging(
    name: str,
    find: Find,
    *,
    find_in_cut: Find | None = None,
    score: Scoring = lambda right, *_: right,
    **described: Any,
) -> BuiltIn:
    """Make the function that compares the answer of `find` with the gold answer.

    `find_in_cut` replaces `find` for a completion that was cut at its limit; `described` are other fields of `BuiltIn`.
    """

    def pairs(
        *,
        prompts: Sequence[str],
        completions: Sequence[str],
        answer: Sequence[str | None],
        finish_reasons: Sequence[str] | None = None,
        **columns: object,
    ) -> list[tuple[str, str] | float | None]:
        """Return gold answer and stated answer of each completion; 0.0 if it states none, None without gold answer."""
        compared, ends = list[tuple[str, str] | float | None](), finish_reasons or ["stop"] * len(completions)
        for prompt, completion, gold, end in zip(prompts, completions, answer, ends, strict=True):
            stated = (find_in_cut if find_in_cut and end == "length" else find)(prompt, completion)
            if stated and gold and is_choice(gold.strip()):
                stated = of_prompt(stated, prompt)
            compared.append(None if gold is None or is_blank(gold) else 0.0 if stated is None else (gold, stated))
        return compared

    def call(
        *, completion_ids: Sequence[Sequence[int]] | None = None, **columns: Any
    ) -> list[float | RewardError | None]:
        compared = pairs(**columns)
        outcomes = iter(math_outcomes([pair for pair in compared if isinstance(pair, tuple)]))
        lengths = [0] * len(compared) if completion_ids is None else map(len, completion_ids)
        rows = zip(columns["prompts"], columns["completions"], columns["answer"], lengths, strict=True)
        scores = list[float | RewardError | None]()
        for pair, (prompt, completion, gold, length) in zip(compared, rows, strict=True):
            outcome = next(outcomes) if isinstance(pair, tuple) else pair
            right = float(outcome.equal) if isinstance(outcome, EqualityVerdict) else outcome
            scores.append(score(right, prompt, completion, gold or "", length) if isinstance(right, float) else right)
        return scores

    def begin(**columns: Any) -> None:
        begin_verdicts([pair for pair in pairs(**columns) if isinstance(pair, tuple)])

    return BuiltIn(name=name, call=call, begin=begin, find=find, find_in_cut=find_in_cut, need=ANSWERS, **described)


def stating(statement: Callable[[Task, str], str]) -> dict[str, Any]:
    """Make the fields `gold` and `junk` of a function whose completions state an answer in this form."""
    return {
        "gold": lambda task: None if is_blank(task.answer) else statement(task, task.answer),
        "junk": lambda task: (*JUNK, statement(task, WRONG_ANSWER)),
    }


def form_alone(name: str, is_formed: Callable[[str, str], bool], **described: Any) -> BuiltIn:
    """Make the function that gives 1.0 for a completion of this form; `described` as in `judging`."""

    def call(*, prompts: list[str], completions: list[str], **columns: object) -> list[float]:
        return [float(is_formed(*pair)) for pair in zip(prompts, completions, strict=True)]

    return BuiltIn(name=name, call=call, is_formed=is_formed, audit_exception=FORM_ALONE, **described)


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
    `=` in it, and of that the number, where it is the only one. One that was cut at its limit has no last line. For
    models that have not learned any format: without it they score 0.0 throughout, and nothing is learned.
    """

    mark = "" if plain else r"<answer>...</answer>, \boxed{} or ####"
    find = partial(find_answer, plain=plain)
    stated = stating(_in_tags)
    return judging("accuracy", find, find_in_cut=find_answer, mark=mark, honest_forms=ANY_FORM, **stated)


def boxed(context: RewardContext) -> BuiltIn:
    r"""1.0 when the last complete `\boxed{}` outside the thinking is right, else 0.0; None without gold answer."""

    def find(prompt: str, completion: str) -> str | None:
        return last_boxed(visible(prompt, completion))

    return judging(
        "boxed",
        find,
        mark=r"\boxed{}",
        is_formed=lambda *pair: find(*pair) is not None,
        honest_forms=("box",),
        system_prompt=r"Reason step by step. End with the final answer, and nothing but the answer, inside \boxed{}.",
        **stating(lambda task, answer: after_thought(task, rf"\boxed{{{answer}}}")),
    )


THINK_ANSWER = (
    "Reason about the problem first, between <think> and </think>. Then give the final answer alone, between <answer> "
    "and </answer>, and stop. Use each tag exactly once: <think> your reasoning </think> <answer> your answer </answer>"
)
"""System message that tells a model the format of `format` and `think_answer_tags`."""


def think_answer_tags(context: RewardContext) -> BuiltIn:
    """1.0 when `format` gives 1.0 and the answer in the tags is right, else 0.0; None without gold answer."""

    def find(prompt: str, completion: str) -> str | None:
        return last_answer_tag(visible(prompt, completion)) if is_think_answer(prompt, completion) else None

    return judging(
        "think_answer_tags",
        find,
        mark="<think>...</think><answer>...</answer>",
        is_formed=is_think_answer,
        honest_forms=("think and answer tags",),
        system_prompt=THINK_ANSWER,
        **stating(_in_tags),
    )


def think_answer_format(context: RewardContext) -> BuiltIn:
    """`format`: `<think>...</think>` and then `<answer>...</answer>`, whatever the answer is.

    | completion                                       | score |
    |--------------------------------------------------|-------|
    | each tag once, in order, answer not empty        | 1.0   |
    | text before `<think>` or after `</answer>`       | 0.0   |
    | a tag missing, repeated or out of order          | 0.0   |

    Where the prompt ends with `<think>`, the completion must not open it again.
    """

    return form_alone(
        "format",
        is_think_answer,
        honest_forms=("think and answer tags",),
        system_prompt=THINK_ANSWER,
        gold=lambda task: _in_tags(task, task.answer or "42"),
        junk=lambda task: JUNK,
    )


def is_think_answer(prompt: str, completion: str) -> bool:
    """Return whether prefilled prompt and completion together are `<think>...</think> ... <answer>...</answer>`."""
    text = prefill(prompt).strip() + completion.strip()
    in_order = stand_once_in_order(text, (OPEN_THINK, CLOSE_THINK, OPEN_ANSWER, CLOSE_ANSWER))
    return in_order and text.startswith(OPEN_THINK) and text.endswith(CLOSE_ANSWER) and bool(last_answer_tag(text))


def _in_tags(task: Task, answer: str) -> str:
    return after_thought(task, f"{OPEN_ANSWER}{answer}{CLOSE_ANSWER}")


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

    def score(right: float, prompt: str, completion: str, gold: str, _length: int) -> float:
        is_same = find(prompt, completion) == gold.strip()
        return right * (SAME_TEXT if is_same else EQUAL) + PER_TAG * counted_tags(prompt, completion)

    def find(prompt: str, completion: str) -> str | None:
        return last_answer_tag(visible(prompt, completion))

    return judging(
        "gsm8k",
        find,
        mark="<answer>...</answer>",
        score=score,
        maximum=SAME_TEXT + 4 * PER_TAG,
        right=EQUAL,
        is_formed=lambda *pair: counted_tags(*pair) == len(TAGS),
        honest_forms=("reasoning and answer tags",),
        system_prompt="Write your reasoning between <reasoning> and </reasoning>, then the final answer alone between "
        "<answer> and </answer>, each tag on a line of its own and used once:\n"
        "<reasoning>\nyour reasoning\n</reasoning>\n<answer>\nyour answer\n</answer>",
        **stating(_in_tutorial_tags),
    )


def counted_tags(prompt: str, completion: str) -> int:
    """Count the valid tags among the four, including one that the prompt has opened."""
    pieces = _TAG.split(visible_text(prefill(prompt) + completion, tags=("think",)))
    counted, last = 0, 0
    for tag in TAGS:
        indices = [index for index in range(1, len(pieces), 2) if pieces[index] == tag]
        if len(indices) == 1 and indices[0] > last:
            content = pieces[indices[0] + (-1 if tag.startswith("</") else 1)]
            if any(map(str.isalnum, content)):
                counted, last = counted + 1, indices[0]
    return counted


def _in_tutorial_tags(task: Task, answer: str) -> str:
    """Make a completion that states this answer after any thinking that the prompt has opened."""
    opened = prefill(task.prompt).strip()
    begin = {"": OPEN_REASONING, OPEN_REASONING: ""}.get(opened, f"Worked out.</think>{OPEN_REASONING}")
    return f"{begin}Worked out.{CLOSE_REASONING}{OPEN_ANSWER}{answer.strip()}{CLOSE_ANSWER}"
