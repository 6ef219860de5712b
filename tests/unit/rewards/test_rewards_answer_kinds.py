"""Answers as models write them are right or wrong by kind, and no rule that takes a spelling pays a wrong answer."""

import time

import pytest

from paceline.rewards.maths.equality import decide
from paceline.rewards.maths.verdicts import begin_verdicts, math_equal, unverifiable
from tests.support.answer_cases import KINDS, answers

PAIRS = [pair for kind in KINDS.values() for pair in answers(kind)]


@pytest.fixture(scope="module", autouse=True)
def _all_at_once():
    begin_verdicts([pair[:2] for pair in PAIRS])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_right_answers_of_a_kind_are_equal_and_wrong_ones_are_not(kind):
    judged = [(gold, answer, math_equal(gold, answer)) for gold, answer, _ in answers(KINDS[kind])]
    assert [row for row, pair in zip(judged, answers(KINDS[kind]), strict=True) if row != pair] == []


def test_half_of_the_answers_are_wrong_and_no_pair_stands_twice():
    assert len(PAIRS) >= 500
    assert len({pair[:2] for pair in PAIRS}) == len(PAIRS)
    assert 0.45 < sum(is_right for _, _, is_right in PAIRS) / len(PAIRS) < 0.55


def test_every_gold_answer_of_the_kinds_can_be_learned():
    assert unverifiable([gold for kind in KINDS.values() for gold, _, _ in kind]) == []


@pytest.mark.parametrize(
    "sign", ["~", "= ", r"\to ", r"\quad", "<b>", "*", "1 000 ", "5万", r"\color{red}", "A, ", "x=1,"]
)
def test_an_answer_of_nothing_but_signs_costs_next_to_nothing(sign):
    started = time.thread_time()
    verdict = decide("12", (sign * 4000)[:4000])
    assert time.thread_time() - started < 0.3
    assert verdict is None or not verdict.equal
