"""Law 8: under every built-in reward function the gold answer scores the maximum, and known cheats score zero."""

import pytest

from paceline.rewards import BUILT_IN, gold_completion

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
JUDGES = ["accuracy", "think_answer_tags", "boxed"]


def grade(name, completion, answer, prompt=PROMPTS[0]):
    (value,) = BUILT_IN[name](prompts=[prompt], completions=[completion], answer=[answer])
    return value


@pytest.mark.parametrize("answer", GOLD_ANSWERS)
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("name", [*JUDGES, "format"])
def test_the_gold_answer_scores_full(name, answer, prompt):
    assert grade(name, gold_completion(name, answer, prompt=prompt), answer, prompt) == 1.0


@pytest.mark.parametrize("answer", [answer for answer in GOLD_ANSWERS if answer != "blue"])
@pytest.mark.parametrize("name", JUDGES)
def test_another_answer_in_the_right_format_scores_zero(name, answer):
    assert grade(name, gold_completion(name, "blue"), answer) == 0.0


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


@pytest.mark.parametrize("cheat", CHEATS)
@pytest.mark.parametrize("name", JUDGES)
def test_a_known_cheat_scores_zero(name, cheat):
    assert grade(name, CHEATS[cheat], "42") == 0.0


@pytest.mark.parametrize(
    "spray", ["A, B, C, D", "ABCD", "A B C D", "(A) (B) (C) (D)", "A or B", "not A", "A/B", "{A}{B}"]
)
@pytest.mark.parametrize("gold", ["A", "D"])
@pytest.mark.parametrize("name", JUDGES)
def test_naming_every_choice_scores_zero(name, gold, spray):
    assert grade(name, gold_completion(name, spray), gold) == 0.0


@pytest.mark.parametrize("text", ["", "<answer>42</answer>", "<think></think><answer></answer>", "</think><think>"])
def test_the_format_is_not_had_for_a_part_of_it(text):
    assert grade("format", text, "42") == 0.0
