"""Law 8: under every built-in reward function the gold answer scores the maximum, and known cheats score below it.

Under a function that only judges the answer a cheat scores zero. `gsm8k` pays for its tags alone, and never more than
that; what only penalises (length, repetition) gives nothing for any text.
"""

import itertools
import json

import pytest

from paceline.rewards.builtin.answers import PER_TAG
from paceline.rewards.function import RewardContext
from paceline.rewards.resolving import BUILT_IN, resolve
from paceline.types import Task

GOLD_ANSWERS = [
    "42",
    "-7",
    "0",
    "1,000",
    "3.14",
    "1/2",
    r"\frac{1}{2}",
    r"\sqrt{4}",
    "50%",
    "$18",
    "5 cm",
    "(1, 2)",
    r"\{1, 2, 3\}",
    "[1, 2)",
    r"(-\infty, 3] \cup (5, \infty)",
    "x = 5",
    "x^2 + 2x + 1",
    r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
    "A",
    "blue",
    "two words",
    r"\text{odd}",
    "10:30",
    "日本",
    "9^{9^{9}}",
    "a proof, in words. " * 300,
]
PROMPTS = ["What is it? Answer inside <answer> and </answer> tags.", "What is it?\n<think>\n"]
JUDGES = ["accuracy", "accuracy(plain=true)", "think_answer_tags", "boxed"]
FUNCTIONS = {
    name: resolve(name, RewardContext(max_completion_length=100)) for name in [*BUILT_IN, "accuracy(plain=true)"]
}
TAGS_ALONE = pytest.approx(4 * PER_TAG)


def asked(answer, prompt=PROMPTS[0], **columns):
    return Task(task_id="d:0", prompt=prompt, prompt_ids=(1,), answer=answer, columns=columns)


def grade(name, completion, answer, prompt=PROMPTS[0], **columns):
    (value,) = FUNCTIONS[name](
        prompts=[prompt],
        completions=[completion],
        answer=[answer],
        completion_ids=[[]],
        **{column: [value] for column, value in columns.items()},
    )
    return value


def gold(name, answer, prompt=PROMPTS[0], **columns):
    return FUNCTIONS[name].gold(asked(answer, prompt, **columns))


@pytest.mark.parametrize("answer", GOLD_ANSWERS)
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("name", [*JUDGES, "format", "gsm8k", "react_format"])
def test_the_gold_answer_scores_full(name, answer, prompt):
    assert grade(name, gold(name, answer, prompt), answer, prompt) == FUNCTIONS[name].maximum


@pytest.mark.parametrize("answer", [answer for answer in GOLD_ANSWERS if answer != "blue"])
@pytest.mark.parametrize("name", JUDGES)
def test_another_answer_in_the_right_format_scores_zero(name, answer):
    assert grade(name, gold(name, "blue"), answer) == 0.0
    assert grade("gsm8k", gold("gsm8k", "blue"), answer) == TAGS_ALONE
    assert grade("cosine", gold("accuracy", "blue"), answer) < 0.0 < grade("cosine", gold("accuracy", answer), answer)


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_what_a_function_calls_junk_scores_below_its_maximum(name, prompt):
    task = asked("42", prompt)
    for text in FUNCTIONS[name].junk(task):
        value = grade(name, text, "42", prompt)
        assert value is None or value < FUNCTIONS[name].maximum


CHEATS = {
    "empty": "",
    "spaces": " \n\t",
    "echo of the prompt": PROMPTS[0],
    "echo of the question as an answer": "<think></think><answer>17 + 25</answer>",
    "tags without content": "<think></think><answer></answer>",
    "tags around spaces": "<think> </think><answer> </answer>",
    "box without content": r"\boxed{}",
    "opened and never closed": r"<answer>42 \boxed{42",
    "the answer in the thinking": r"<think><answer>42</answer> \boxed{42}</think>",
    "the answer in an endless thought": r"<think><answer>42</answer> \boxed{42}",
    "bare answer": "42",
    "all numbers in one answer": f"<think></think><answer>{', '.join(map(str, range(100)))}</answer>",
    "all numbers in one box": rf"\boxed{{{', '.join(map(str, range(100)))}}}",
    "several boxes, the right one first": r"\boxed{42} \boxed{43}",
    "several boxes in one answer": r"<think></think><answer>\boxed{41} \boxed{42}</answer> \boxed{43}",
    "two different answers": "<think></think><answer>42</answer><answer>43</answer>",
    "either or": r"<think></think><answer>42 or 43</answer> \boxed{42 or 43}",
    "a chain of equations": r"<think></think><answer>41=42</answer> \boxed{41=42}",
    "a calculation": r"<think></think><answer>6*7</answer> \boxed{6*7}",
    "the answer in a sentence": "<think></think><answer>It is 42, I believe</answer>",
    "a set around it": r"\boxed{\{41, 42\}}",
    "digits side by side": r"<think></think><answer>4 2</answer> \boxed{40 2}",
    "misplaced comma": r"<think></think><answer>4,2</answer> \boxed{4,2}",
    "huge and unmarked": "42 " * 300_000,
    "huge answer": f"<think></think><answer>{'42 ' * 300_000}</answer>",
    "huge number": f"<think></think><answer>{'42' * 100_000}</answer>",
    "ten thousand open boxes": r"\boxed{" * 10_000 + "42",
    "a tower of powers": r"<think></think><answer>9^{9^{9}}</answer> \boxed{9^{9^{9}}}",
}


PLAIN = ("accuracy(plain=true)", "bare answer")
"""Under `plain` an answer without any mark is no cheat."""


@pytest.mark.parametrize(("name", "cheat"), [pair for pair in itertools.product(JUDGES, CHEATS) if pair != PLAIN])
def test_a_known_cheat_scores_zero(name, cheat):
    assert grade(name, CHEATS[cheat], "42") == 0.0


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_known_cheat_is_not_paid_for_by_the_other_functions(cheat):
    assert grade("gsm8k", CHEATS[cheat], "42") <= 4 * PER_TAG
    assert grade("cosine", CHEATS[cheat], "42") <= 0.0
    assert grade("repetition", CHEATS[cheat], "42") <= 0.0
    assert grade("soft_overlong", CHEATS[cheat], "42") <= 0.0
    assert grade("react_format", CHEATS[cheat], "42") == 0.0


@pytest.mark.parametrize(
    "spray", ["A, B, C, D", "ABCD", "A B C D", "(A) (B) (C) (D)", "A or B", "not A", "A/B", "{A}{B}"]
)
@pytest.mark.parametrize("gold", ["A", "D"])
@pytest.mark.parametrize("name", JUDGES)
def test_naming_every_choice_scores_zero(name, gold, spray):
    assert grade(name, FUNCTIONS[name].gold(asked(spray)), gold) == 0.0


@pytest.mark.parametrize("text", ["", "<answer>42</answer>", "<think></think><answer></answer>", "</think><think>"])
def test_the_format_is_not_had_for_a_part_of_it(text):
    assert grade("format", text, "42") == 0.0


TAG_CHEATS = {
    "the system message copied": "<reasoning>\n...\n</reasoning>\n<answer>\n...\n</answer>",
    "tags without content": "<reasoning></reasoning><answer></answer>",
    "tags around spaces": "<reasoning> </reasoning>\n<answer>\n</answer>",
    "each tag ten times": "<reasoning>a</reasoning><answer>a</answer>" * 10,
    "closing tags first": "</answer></reasoning>",
}


@pytest.mark.parametrize("cheat", TAG_CHEATS)
def test_tags_without_content_are_worth_nothing(cheat):
    assert grade("gsm8k", TAG_CHEATS[cheat], "42") == 0.0


CALLS = [
    'Action: search\nAction Input: {"q": "42"}',
    "Action: search\nAction Input: plain text",
    json.dumps({"name": "search", "arguments": {"q": "42", "n": [1, 2.5, None, True]}}),
    json.dumps([{"name": "a", "arguments": {}}, {"name": "b", "arguments": {"x": "日本"}}]),
]


@pytest.mark.parametrize("answer", CALLS)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_gold_calls_score_full(answer, prompt):
    assert grade("tool_call", gold("tool_call", answer, prompt), answer, prompt) == 1.0
    assert (
        grade("tool_call", gold("tool_call", None, prompt, tool_calls=answer), None, prompt, tool_calls=answer) == 1.0
    )


CALL_CHEATS = {
    **CHEATS,
    "the right name alone": "Action: search",
    "every tool that there is": "".join(
        f'<tool_call>{{"name": "{name}", "arguments": {{"q": "42"}}}}</tool_call>'
        for name in ("search", "find", "look")
    ),
    "the call in the thinking": '<think>Action: search\nAction Input: {"q": "42"}</think>',
    "the call after a made-up observation": 'Observation: ok\nAction: search\nAction Input: {"q": "42"}',
    "two answers to one question": 'Action: search\nAction Input: {"q": "41", "q": "42"}',
    "the call quoted as text": json.dumps(CALLS[0]),
}


@pytest.mark.parametrize("cheat", CALL_CHEATS)
def test_a_cheat_at_calling_scores_zero(cheat):
    assert grade("tool_call", CALL_CHEATS[cheat], CALLS[0]) == 0.0
