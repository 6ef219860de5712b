"""The length rewards have the values of their formulas, and impossible lengths are refused."""

import math

import pytest

from paceline.errors import RewardError
from paceline.rewards.function import RewardContext
from paceline.rewards.resolving import resolve

RIGHT, WRONG = "<answer>42</answer>", "<answer>41</answer>"


def cosine(completion, length, name="cosine(max_length=100)", answer="42"):
    (value,) = resolve(name)(prompts=["p"], completions=[completion], answer=[answer], completion_ids=[[0] * length])
    return value


@pytest.mark.parametrize(
    ("length", "right", "wrong"),
    [
        (0, 1.0, -0.5),
        (25, 0.75 + 0.25 * math.sqrt(0.5), -0.25 - 0.25 * math.sqrt(0.5)),
        (50, 0.75, -0.25),
        (100, 0.5, 0.0),
        (101, 0.5, 0.0),
        (200, 0.5, 0.0),  # the cosine itself would be back at its start
    ],
)
def test_cosine_falls_for_right_and_rises_for_wrong_answers_up_to_the_length(length, right, wrong):
    assert cosine(RIGHT, length) == pytest.approx(right)
    assert cosine(WRONG, length) == pytest.approx(wrong)
    assert cosine("no answer", length) == pytest.approx(wrong)
    assert cosine(RIGHT, length, answer=None) is None


def test_the_values_of_cosine_are_parameters():
    name = "cosine(max_length=10, min_correct=0, max_correct=2, min_wrong=-1, max_wrong=-1)"
    assert [cosine(RIGHT, length, name) for length in (0, 5, 10)] == pytest.approx([2.0, 1.0, 0.0])
    assert [cosine(WRONG, length, name) for length in (0, 5, 10)] == [-1.0, -1.0, -1.0]
    assert resolve(name).maximum == 2.0


def test_a_right_answer_is_worth_more_than_a_wrong_one_at_every_length():
    assert all(cosine(RIGHT, length) > cosine(WRONG, length) for length in range(0, 300, 7))


@pytest.mark.parametrize(
    ("length", "score"),
    [(0, 0.0), (75, 0.0), (76, -0.04), (90, -0.6), (99, -0.96), (100, -1.0), (101, -1.0), (200, -1.0)],
)
def test_soft_overlong_is_zero_then_a_line_then_minus_one(length, score):
    function = resolve("soft_overlong(max_length=100, cache=25)")
    assert function(completion_ids=[[0] * length], completions=["any"]) == [pytest.approx(score)]


def test_lengths_come_from_the_run_where_they_are_not_given():
    context = RewardContext(max_completion_length=100)
    assert resolve("soft_overlong", context)(completion_ids=[[0] * 80, [0] * 90]) == [0.0, -0.5]  # a fifth is cache
    assert resolve("soft_overlong(max_length=10, cache=10)", context)(completion_ids=[[0] * 5]) == [-0.5]
    (half,) = resolve("cosine", context)(prompts=["p"], completions=[RIGHT], answer=["42"], completion_ids=[[0] * 50])
    assert half == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cosine", r"cosine: max_length must be at least 1 token, got none; write cosine\(max_length=512\)"),
        ("soft_overlong(max_length=0)", "soft_overlong: max_length must be at least 1 token, got 0"),
        ("soft_overlong(max_length=10, cache=11)", r"cache must lie between 1 and max_length \(10\) tokens, got 11"),
        ("soft_overlong(max_length=10, cache=0)", "cache must lie between 1"),
        ("cosine(max_length=9, min_correct=2)", "min_correct must not lie above max_correct .* got 2 to 1"),
        ("cosine(max_length=9, min_wrong=1)", "nor min_wrong above max_wrong, got .* and 1 to 0"),
    ],
)
def test_lengths_and_values_that_cannot_be_are_refused(name, message):
    with pytest.raises(RewardError, match=message):
        resolve(name)
