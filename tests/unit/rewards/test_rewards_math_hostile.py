"""Hostile answers end within their deadline, score nothing, and hold up nobody else."""

import time

import pytest

from paceline.rewards.maths.equality import EqualityVerdict, decide
from paceline.rewards.maths.verdicts import forget_verdicts, math_verdicts, memory
from tests.support.math_cases import HOSTILE, NUMBERS

SLOW = [
    rf"\det\begin{{pmatrix}}{cells}\end{{pmatrix}}"
    for size in (9, 10)
    for cells in [r"\\".join("&".join(f"x_{{{i}{j}}}" for i in range(size)) for j in range(size))]
]
"""They take sympy much more than the deadline."""
MATRIX = r"\begin{pmatrix}1&0\\0&1\end{pmatrix}x"
"""A gold answer that another matrix may answer."""


def test_there_are_hostile_answers_of_many_kinds():
    assert len(HOSTILE) >= 40


@pytest.mark.parametrize("answer", [pytest.param(text, id=repr(text[:24])) for text in HOSTILE])
def test_a_hostile_answer_costs_the_calling_thread_next_to_nothing_and_is_wrong(answer):
    started = time.thread_time()
    verdict = decide("x^2+2x+1", answer)
    assert time.thread_time() - started < 0.3
    assert verdict is None or not verdict.equal


@pytest.mark.long
def test_every_hostile_answer_ends_within_its_deadline_and_scores_nothing():
    started = time.monotonic()
    verdicts = math_verdicts([("x^2+2x+1", answer) for answer in HOSTILE])
    assert not any(verdict.equal for verdict in verdicts)
    assert {verdict.rule for verdict in verdicts} >= {"same text", "words", "symbolic", "timeout"}
    assert time.monotonic() - started < 120


@pytest.mark.long
def test_neighbours_of_a_hostile_answer_have_their_verdicts_before_it_has_its_own():
    forget_verdicts()
    math_verdicts([("x+1", "1+x"), ("x+1", "2+x")])
    hostile = memory().begin((MATRIX, SLOW[0]))
    neighbours = [("2x+2", "2(x+1)"), ("42", "42.0"), ("x^2-1", "(x-1)(x+1)"), ("2x+2", "2(x+2)")]
    verdicts = math_verdicts(neighbours)
    assert not hostile.done()
    assert [verdict.equal for verdict in verdicts] == [True, True, True, False]
    assert math_verdicts([(MATRIX, SLOW[0])]) == [EqualityVerdict(equal=False, rule="timeout")]


@pytest.mark.long
def test_a_timeout_is_remembered():
    pairs = [(MATRIX, SLOW[1])]
    first = math_verdicts(pairs)
    started = time.thread_time()
    assert math_verdicts(pairs * 1000) == first * 1000
    assert first[0].rule == "timeout"
    assert time.thread_time() - started < 1


def test_plain_numbers_never_reach_the_pool():
    assert all(decide(first, second) is not None for first, second, _ in NUMBERS if "sqrt" not in second)
