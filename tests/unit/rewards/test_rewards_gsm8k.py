"""The reward of GSM8K's format scores correctness and tags as its table says."""

import pytest

from paceline.rewards.resolving import resolve

GSM8K = resolve("gsm8k")


def grade(completion, answer="42", prompt="What is 6 * 7?"):
    (value,) = GSM8K(prompts=[prompt], completions=[completion], answer=[answer])
    return value


def styled(answer, reasoning="6 * 7"):
    return f"<reasoning>\n{reasoning}\n</reasoning>\n<answer>\n{answer}\n</answer>"


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        (styled("42"), 2.8),
        (styled("42") + "\n\nDone.", 2.8),  # text around the tags is free
        ("Well: " + styled("42"), 2.8),
        (styled("42.0"), 2.3),
        (styled("$42"), 2.3),
        (styled("42 dollars"), 2.3),
        (styled("41"), 0.8),
        (styled("42", reasoning="..."), 2.0 + 0.4),  # no letter or digit between the tags
        (styled("..."), 0.4),
        (styled("...", reasoning="..."), 0.0),  # the system message copied
        ("<reasoning></reasoning><answer></answer>", 0.0),
        ("<answer>42</answer>", 2.0 + 0.4),
        ("<answer>42</answer><reasoning>6 * 7</reasoning>", 2.0 + 0.4),  # in the wrong order: two count
        ("<reasoning>6 * 7<answer>42</answer>", 0.6),  # the reasoning never ends, and holds no answer
        ("6 * 7</reasoning><answer>42</answer>", 2.0 + 0.6),
        ("<answer>42", 0.2),
        ("42</answer>", 0.2),
        ("<reasoning>6 * 7</reasoning><answer>42</answer><answer>43</answer>", 0.4),  # two answers: neither tag counts
        ("<reasoning>6 * 7</reasoning><answer>43</answer><answer>42</answer>", 2.4),
        ("<reasoning><answer>42</answer></reasoning>", 0.4),  # the answer in the reasoning
        ("42", 0.0),
        ("", 0.0),
        (styled("42").upper(), 0.0),
        ("<think>6 * 7</think>" + styled("42"), 2.8),
    ],
)
def test_scores_are_correctness_and_a_fifth_per_tag(completion, score):
    assert grade(completion) == pytest.approx(score)


def test_a_row_without_gold_answer_is_not_right_by_having_no_answer():
    assert grade("no tags", answer=None) is None
    assert grade(styled("..."), answer=" ") is None


def test_the_same_text_is_worth_more_than_an_equal_number():
    assert grade(styled("1,000"), answer="1,000") == pytest.approx(2.8)
    assert grade(styled("1000"), answer="1,000") == pytest.approx(2.3)
    assert grade(styled("between 42 and 43"), answer="42") == pytest.approx(0.8)


def test_a_tag_that_the_prompt_has_opened_counts():
    rest = styled("42").removeprefix("<reasoning>\n")
    assert grade(rest, prompt="What?\n<reasoning>\n") == pytest.approx(2.8)
    assert grade("6 * 7</think>" + styled("42"), prompt="What?\n<think>\n") == pytest.approx(2.8)
