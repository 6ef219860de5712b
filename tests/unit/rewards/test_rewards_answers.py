"""The built-in answer and format rewards score the completions of hand-made tables as stated."""

import pytest

from paceline.rewards.resolving import default_system_prompt, resolve

GOOD = "<think>6 * 7</think>\n<answer>42</answer>"


def grade(name, completion, answer="42", prompt="What is 6 * 7?"):
    (value,) = resolve(name)(prompts=[prompt], completions=[completion], answer=[answer], topic=["sums"])
    return value


@pytest.mark.parametrize(
    ("completion", "accuracy", "form", "both", "boxed"),
    [
        (GOOD, 1, 1, 1, 0),
        (GOOD + "\n", 1, 1, 1, 0),
        (GOOD.replace("42", "41"), 0, 1, 0, 0),
        (GOOD + " Done.", 1, 0, 0, 0),
        ("Sure! " + GOOD, 1, 0, 0, 0),
        ("<answer>42</answer>", 1, 0, 0, 0),
        ("<answer>42</answer><think>6 * 7</think>", 1, 0, 0, 0),
        ("<think>6 * 7</think><answer></answer>", 0, 0, 0, 0),
        ("<think>6 * 7</think><answer>1</answer><answer>42</answer>", 1, 0, 0, 0),
        ("<think>6 * 7</think><answer>42</answer><answer>1</answer>", 0, 0, 0, 0),
        ("<think><answer>42</answer></think><answer>1</answer>", 0, 0, 0, 0),
        ("<think><answer>42</answer></think>", 0, 0, 0, 0),
        ("<think>6 * 7<answer></think>42</answer>", 0, 0, 0, 0),
        ("<THINK>6 * 7</THINK><ANSWER>42</ANSWER>", 0, 0, 0, 0),
        ("<reasoning>6 * 7</reasoning><answer>42</answer>", 1, 0, 0, 0),
        ("<reasoning><answer>42</answer></reasoning>", 0, 0, 0, 0),
        (r"<think>6 * 7</think> \boxed{42}", 1, 0, 0, 1),
        (r"<think>\boxed{42}</think>", 0, 0, 0, 0),
        (r"<think>6 * 7</think><answer>\boxed{42}</answer>", 1, 1, 1, 1),
        (r"\boxed{42} or \boxed{43}", 0, 0, 0, 0),
        (r"\boxed{42} and then \boxed{", 1, 0, 0, 1),
        (r"\fbox{42}, \boxed 42", 0, 0, 0, 0),
        ("#### 42", 1, 0, 0, 0),
        ("The answer is 42.", 0, 0, 0, 0),
        ("answer: $42$", 0, 0, 0, 0),
    ],
)
def test_scores_are_those_of_the_tables(completion, accuracy, form, both, boxed):
    names = ("accuracy", "format", "think_answer_tags", "boxed")
    assert [grade(name, completion) for name in names] == [accuracy, form, both, boxed]


@pytest.mark.parametrize("name", ["accuracy", "think_answer_tags", "boxed"])
@pytest.mark.parametrize("answer", [None, "", "  "])
def test_a_task_without_gold_answer_is_not_a_wrong_answer(name, answer):
    assert grade(name, GOOD, answer=answer) is None


def test_after_a_prompt_that_opens_the_thinking_the_completion_must_not_open_it_again():
    prompt, rest = "What is 6 * 7?\n<think>\n", GOOD.removeprefix("<think>")
    for name in ("accuracy", "format", "think_answer_tags"):
        assert grade(name, rest, prompt=prompt) == 1
        assert grade(name, rest) == (name == "accuracy")
    assert grade("format", GOOD, prompt=prompt) == 0
    assert grade("accuracy", "<answer>42</answer>", prompt=prompt) == 0  # still a thought


@pytest.mark.parametrize(
    "line",
    [
        "x /= 42",
        "x =/= 42",
        r"x =\= 42",
        "x += 42",
        "x ~= 42",
        "Is the answer 42?",
        "Is 6 * 7 = 42?",
        "42?",
        "42!",
        "= 42!",
        "The answer is 42!",
        "The answer is **42**!",
        "The answer is $42$!",
        "the sum of 42",
        "the product of 42",
        "difference of 42",
        "average of 42",
        "42 of the millions",
        "42 of the halves",
        "42 of the quarters",
        "42 lacs",
        "42 quints",
        "The answer is i 42",
        r"\boxed{2\boxed{42}}",
        r"\boxed{-\boxed{42}}",
    ],
)
def test_plain_accuracy_reads_no_number_out_of_operations_questions_and_factorials(line):
    assert grade("accuracy(plain=true)", line) == 0


@pytest.mark.parametrize(
    "line",
    [
        "It is 42 apples!",
        "The total of it is 42",
        "she sold 42 of the cookies",
        "a total of 42 apples.",
        "= 42",
        "x = 42",
        "Is it 41? Answer: 42.",
        "I get 42",
        "The answer is 42 in total!",
        r"\boxed{\boxed{42}}!",
        "that leaves 42 boys",
    ],
)
def test_plain_accuracy_reads_a_number_among_words_that_say_nothing_of_it(line):
    assert grade("accuracy(plain=true)", line) == 1


CITIES = "Which is a capital?\nA) Lyon\nB) None, or not known\nC) the city of Paris"


@pytest.mark.parametrize(
    ("answer", "gold", "score"),
    [
        ("C) the city of Paris", "C", 1),
        ("**C. The city of Paris.**", "C", 1),
        ("C", "C", 1),
        ("B) None, or not known", "B", 1),  # denies nothing: it is this choice's own text
        ("B) Lyon", "B", 0),
        ("C) C", "C", 0),
        ("C) ruled out", "C", 0),
        ("C) Paris", "C", 0),
        ("A) Lyon", "C", 0),
    ],
)
def test_text_behind_a_letter_is_that_of_the_choice_where_the_prompt_tells_it(answer, gold, score):
    assert grade("accuracy", f"<answer>{answer}</answer>", gold, CITIES) == score
    inline = CITIES.replace("\n", " ") + "<|im_end|>\n<|im_start|>assistant\n"
    assert grade("accuracy", f"<answer>{answer}</answer>", gold, inline) == score


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ("The answer is 42.", 1),
        ("6 * 7 = 42", 1),
        ("42", 1),
        ("41\n42", 1),
        ("It is 41 or 42", 0),
        ("6 * 7", 0),
        ("<think>42</think>", 0),
        ("#### 41\nThe answer is 42.", 0),  # a marked answer goes first
        ("", 0),
    ],
)
def test_plain_accuracy_reads_the_last_line_where_nothing_is_marked(completion, score):
    assert grade("accuracy(plain=true)", completion) == score
    assert grade("accuracy(plain=false)", completion) == 0


def test_a_completion_that_was_cut_has_no_last_line_but_may_have_marked_its_answer():
    texts = ["So it has a total of 42", "So it has a total of 42", "<answer>42</answer> so"]
    rows = {"prompts": ["p"] * 3, "completions": texts, "answer": ["42"] * 3}
    assert resolve("accuracy(plain=true)")(**rows, finish_reasons=["length", "stop", "length"]) == [0.0, 1.0, 1.0]


def test_many_completions_are_judged_each_by_its_own_answer():
    got = resolve("accuracy")(
        prompts=["p"] * 4,
        completions=["#### 1", "none", "#### 3", "#### 4.0"],
        answer=["1", "2", None, "4"],
    )
    assert got == [1.0, 0.0, None, 1.0]


def test_work_that_begins_early_changes_no_score():
    for name in ("accuracy", "think_answer_tags", "boxed", "gsm8k"):
        rows = {"prompts": ["p"] * 2, "completions": [GOOD, ""], "answer": ["42", None]}
        function = resolve(name)
        before = function(**rows)
        function.begin(**rows)
        assert function(**rows) == before


def test_the_random_reward_is_uniform_deterministic_and_depends_on_the_position():
    prompts, completions, random = ["p"] * 2000, ["c"] * 2000, resolve("random")
    values = random(prompts=prompts, completions=completions)
    assert values == random(prompts=prompts, completions=completions)
    assert len(set(values)) == 2000
    assert all(0 <= value < 1 for value in values)
    assert sum(values) / 2000 == pytest.approx(0.5, abs=4 / (12 * 2000) ** 0.5)  # four standard errors
    assert random(prompts=["p"], completions=["\ud800"]) != values[:1]


def test_the_default_system_message_asks_for_the_format_that_is_rewarded():
    assert default_system_prompt(["accuracy", "code", "tool_call", "react_format"]) is None
    assert default_system_prompt(["mine.py:f"]) is None
    assert "<answer>" in default_system_prompt(["accuracy(plain=true)", "format"])
    assert "<answer>" in default_system_prompt(["think_answer_tags"])
    assert "<reasoning>" in default_system_prompt(["gsm8k"])
    assert r"\boxed{}" in default_system_prompt(["boxed", "format"])
