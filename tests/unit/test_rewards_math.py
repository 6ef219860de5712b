import subprocess
import sys
import threading

import pytest

from paceline.rewards.math import math_equal
from paceline.rewards.quantities import parse_quantity
from paceline.rewards.symbolic import is_cheap

SAME, DIFFERENT, ONE_WAY = (True, True), (False, False), (False, True)
"""(second text answers the first, first text answers the second); ONE_WAY: only the finished one answers."""

PAIRS = [
    # integers and decimals
    ("42", "42", SAME),
    ("42", " 42\n", SAME),
    ("42", "42.0", SAME),
    ("42", "42.", SAME),
    ("3", "+3", SAME),
    ("3", "-3", DIFFERENT),
    ("-7", "\N{MINUS SIGN}7", SAME),
    ("0", "-0", SAME),
    ("1", "0.999999999999999999", DIFFERENT),
    ("1000", "1e3", SAME),
    ("300000", r"3\times 10^5", SAME),
    ("0.003", r"3 \cdot 10^{-3}", SAME),
    ("2", "two", DIFFERENT),
    ("1", "1_000", DIFFERENT),
    ("10", "10_2", DIFFERENT),
    ("42", "42 42", DIFFERENT),
    ("42", "40 2", DIFFERENT),
    ("42", "", DIFFERENT),
    ("7", "**7**", SAME),
    # a comma is not nothing
    ("1000", "1,000", SAME),
    ("1234567.5", "1,234,567.5", SAME),
    ("1000", r"1{,}000", SAME),
    ("12", "1,2", DIFFERENT),
    ("123", "1,23", DIFFERENT),
    ("10000", "1,0000", DIFFERENT),
    # fractions
    ("1/2", "0.5", SAME),
    ("0.5", r"\frac{1}{2}", SAME),
    (r"\frac{1}{2}", r"\frac12", SAME),
    (r"\frac{1}{2}", r"\dfrac{1}{2}", SAME),
    (r"\frac{1}{2}", r"\frac{12}{}", DIFFERENT),
    ("-1/2", r"\frac{-1}{2}", SAME),
    ("-1/2", r"\frac{1}{-2}", SAME),
    ("1/2", "2/4", SAME),
    ("1/3", "0.333", DIFFERENT),
    ("1/3", "0.3333333", DIFFERENT),
    ("1/0", "0", DIFFERENT),
    ("3.5", "3 1/2", SAME),
    ("3.5", r"3\frac{1}{2}", SAME),
    ("3.5", "3 ½", SAME),
    ("6.5", "3 7/2", DIFFERENT),
    # money, percent, units
    ("18", "$18", SAME),
    ("18", r"\$18", SAME),
    ("18", "$18$", SAME),
    ("18", "18 dollars", SAME),
    ("$1,234.50", "1234.5", SAME),
    ("$5", "5 cents", DIFFERENT),
    ("0.5", "50%", SAME),
    (r"50\%", "50", SAME),
    ("0.5", "0.5%", DIFFERENT),
    ("5", "5 cm", SAME),
    ("5", r"5\text{ cm}", SAME),
    ("5 cm", "5 mm", DIFFERENT),
    ("90", r"90^\circ", SAME),
    ("5000000", "5 million", DIFFERENT),
    ("3", "3x", DIFFERENT),
    # assignments
    ("5", "x=5", SAME),
    ("x=5", "y=5", DIFFERENT),
    ("42", "41=42", DIFFERENT),
    ("42", "x=41=42", DIFFERENT),
    ("2x", "f(x)=2x", SAME),
    ("x+1", "x = x+1", DIFFERENT),
    ("x^2=1", "x^2-1=0", SAME),
    ("x=5", "0=0", DIFFERENT),
    # letters and words
    ("A", "(A)", SAME),
    ("A", r"\textbf{(A)}", SAME),
    ("A", "B", DIFFERENT),
    ("A", "A, B, C, D", DIFFERENT),
    ("A", "a", DIFFERENT),
    ("yes", "Yes.", SAME),
    ("yes", r"\text{yes}", SAME),
    ("no", "on", DIFFERENT),
    ("ice cream", "Ice  cream", SAME),
    ("10:30", "20:60", DIFFERENT),
    ("42", "42 or 43", DIFFERENT),
    ("42", "the answer is 42", DIFFERENT),
    # tuples, sets, lists, intervals
    ("(1, 2)", "(1,2)", SAME),
    ("(1,2)", "(2,1)", DIFFERENT),
    ("(1/2, 3)", r"\left(\frac{1}{2}, 3.0\right)", SAME),
    (r"\{1,2\}", r"\{2,1\}", SAME),
    (r"\{1,2\}", "(1,2)", DIFFERENT),
    (r"\{2,2\}", "2", DIFFERENT),
    (r"\{1,1,2\}", r"\{1,2,2\}", DIFFERENT),
    ("6, 4", "4, 6", SAME),
    ("2,-2", r"\pm 2", SAME),
    ("[1,2)", "[1,2]", DIFFERENT),
    (r"(-\infty, 3]", r"(-\infty,3]", SAME),
    ("(1,2)", r"x\in(1,2)", SAME),
    (r"(1,2)\cup(3,4)", r"(3,4)\cup(1,2)", SAME),
    ("42", "41, 42", DIFFERENT),
    ("42", "42;43", DIFFERENT),
    # algebra
    ("2", r"\sqrt{4}", SAME),
    ("1024", "2^{10}", SAME),
    ("3", r"\log_2 8", SAME),
    ("(x+1)^2", "x^2+2x+1", SAME),
    ("2x+1", "2y+1", DIFFERENT),
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}", SAME),
    (r"\pi", "3.14", DIFFERENT),
    (r"\frac{\pi}{2}", "π/2", SAME),
    (r"\sqrt{2}", "1.414214", DIFFERENT),
    (r"\infty", r"-\infty", DIFFERENT),
    ("2+3i", "3i+2", SAME),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1 & 2\\ 3 & 4\end{bmatrix}", SAME),
    # a calculation is the question, not its answer
    ("42", "17+25", ONE_WAY),
    ("42", "84/2", ONE_WAY),
    ("42", r"6\times 7", ONE_WAY),
    ("120", "5!", ONE_WAY),
    ("42", r"\min(42,43)", ONE_WAY),
    # two guesses at once
    ("x+1", r"x \quad x+1", DIFFERENT),
    ("x+1", r"\boxed{x} \boxed{x+1}", DIFFERENT),
    ("x+1", r"x} \boxed{x+1", DIFFERENT),
    ("x+1", "x+1 }{ x", DIFFERENT),
    (r"\sqrt{2}", r"\sqrt{3} \equiv \sqrt{2}", DIFFERENT),
    (r"\sqrt{2}", r"1=\sqrt{2}", DIFFERENT),
]

HOSTILE = [
    "9^{9^{9}}",
    "9**9**9",
    "9^{999999}",
    "((((9^{999})^{32})^{32})^{32})",
    "99999!",
    "(9!)!",
    r"\binom{100000}{50000}",
    r"\sum_{i=1}^{1000000000} i",
    "9" * 4000 + "+x",
    "(" * 300 + "1" + ")" * 300,
    "(a+b+c+d+f+g)^{30}",
    "".join(f"(x_{{{i}}}+y_{{{i}}})" for i in range(40)),
    r"\sin " * 20 + "x",
    "a" * 20_000,
]


@pytest.mark.parametrize(("first", "second", "wanted"), PAIRS)
def test_equality_is_the_verdict_of_the_table_in_both_directions(first, second, wanted):
    assert (math_equal(first, second), math_equal(second, first)) == wanted


@pytest.mark.parametrize("text", [text for pair in PAIRS for text in pair[:2] if text.strip()])
def test_every_answer_equals_itself(text):
    assert math_equal(text, text)


@pytest.mark.parametrize("answer", HOSTILE)
def test_an_answer_that_is_built_to_be_slow_is_refused_before_any_computation(answer):
    assert not is_cheap(answer.replace("**", "^"))
    assert not math_equal("x^2+2x+1", answer)


def test_a_collection_nested_beyond_the_limit_is_compared_as_text_only():
    nested = "(" * 600 + "1" + ",1)" * 600
    assert math_equal(nested, nested)
    assert not math_equal(nested, nested.replace(",", ", "))


def test_verdicts_in_a_thread_are_those_of_the_main_thread():
    pairs = [pair for pair in PAIRS if pair[2] != ONE_WAY]
    verdicts = []
    math_equal.cache_clear()
    thread = threading.Thread(target=lambda: verdicts.extend(math_equal(*pair[:2]) for pair in pairs))
    thread.start()
    thread.join()
    assert verdicts == [pair[2][0] for pair in pairs]


def test_an_unknown_word_after_a_number_is_not_a_unit():
    assert parse_quantity("3 dozen") is None
    assert parse_quantity("3 hours") is not None


def test_importing_the_rewards_loads_no_algebra_and_grading_prints_nothing():
    code = (
        "import sys, threading, paceline.rewards as rewards; assert 'sympy' not in sys.modules\n"
        "def grade(): assert rewards.math_equal('2', r'\\sqrt{4}') and not rewards.math_equal('x', r'\\frac{')\n"
        "thread = threading.Thread(target=grade); thread.start(); thread.join()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
