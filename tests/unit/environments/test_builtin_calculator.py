"""The calculator: values worked out by hand, and no expression that takes long or becomes code."""

import contextlib
import math
import time

import pytest

from paceline.environments.builtin.calculator import FUNCTIONS, calculator
from paceline.environments.tools import CallError


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("17 * 24", "408"),
        ("2 + 3 * 4", "14"),
        ("(2 + 3) * 4", "20"),
        ("2^10", "1024"),
        ("2 ** 3 ** 2", "512"),
        ("-2 ** 2", "-4"),
        ("2 ** -1", "0.5"),
        ("--3", "3"),
        ("3 × 4 ÷ 6 − 1", "1"),  # noqa: RUF001
        ("10 / 4", "2.5"),
        ("0.1 + 0.2", "0.3"),
        ("1/3", "0.3333333333333333"),
        ("1/3 * 3", "1"),
        (".5e1", "5"),
        ("1e3", "1000"),
        ("1.", "1"),
        ("7 // 2", "3"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("5.5 % 2", "1.5"),
        ("sqrt(16)", "4"),
        ("sqrt(2)", "1.4142135623730951"),
        ("8 ** (1/3)", "2"),
        ("log(8, 2)", "3"),
        ("sin(pi / 2)", "1"),
        ("e", "2.718281828459045"),
        ("min(3, 1, 2) + max(4, 5)", "6"),
        ("abs(-3)", "3"),
        ("round(2.5)", "2"),
        ("round(3.14159, 2)", "3.14"),
        ("floor(-1.5) + ceil(1.5)", "0"),
        ("gcd(12, 18) + lcm(4, 6)", "18"),
        ("factorial(20)", "2432902008176640000"),
        ("2 ** 200", str(2**200)),
        ("10 ** 300 / 10 ** 299", "10"),
    ],
)
def test_an_expression_has_its_value(expression, value):
    assert calculator(expression) == value


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("", "the expression ends where a number is missing"),
        ("2 +", "the expression ends where a number is missing"),
        ("2 3", "an operator is missing before '3'"),
        ("* 2", "a number is missing before '*'"),
        ("(2", "a bracket is not closed"),
        ("2)", "an operator is missing before ')'"),
        ("1/0", "division by zero"),
        ("1 // 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("(pi - pi) ** -0.5", "division by zero"),
        ("sqrt(-1)", "sqrt has no value for (-1)"),
        ("(-8) ** (1/3)", "a power of a negative number has no real value"),
        ("2 = 2", "'= 2' is no arithmetic"),
        ("__import__(1)", "there is no '__import__'; the functions are " + ", ".join(FUNCTIONS)),
        ("'a' * 9", "\"'a' * 9\" is no arithmetic"),
        ("sqrt 2", "sqrt needs its arguments in brackets"),
        ("sqrt(1, 2)", "sqrt has no value for (1, 2)"),
        ("min()", "min has no value for ()"),
        ("gcd(1.5, 2)", "1.5 is no whole number"),
        ("9 ** 9 ** 9", "the number is too large or too small"),
        ("1e999999999", "the number is too large or too small"),
        ("factorial(100000)", "the number is too large or too small"),
        ("round(1, 10 ** 9)", "the number is too large or too small"),
        ("exp(1000)", "the number is too large or too small"),
        ("10 ** 400 / 3", "the number is too large or too small"),  # a fraction, which no float can show
        ("(" * 60 + "1" + ")" * 60, "more than 50 levels of brackets"),
        ("-" * 60 + "1", "more than 50 levels of brackets"),
        ("1" * 1001, "an expression may have 1000 characters, this has 1001"),
    ],
)
def test_what_has_no_value_says_why(expression, error):
    with pytest.raises(CallError) as caught:
        calculator(expression)
    assert str(caught.value) == f"Error: {error}"


@pytest.mark.parametrize(
    "expression",
    [
        "*".join(["9" * 90] * 11),
        "+".join(f"1/{number}" for number in range(1, 180)),
        "2**12000 * 2**900",
        "9**" * 300 + "9",
        "factorial(1299) % 7",
        "1.0000001 ** 99999999",
    ],
)
def test_no_expression_takes_long(expression):
    assert len(expression) <= 1000
    start = time.process_time()
    with contextlib.suppress(CallError):
        calculator(expression)
    assert time.process_time() - start < 0.1


def test_what_it_gives_is_what_python_gives():
    for expression in ("3 * (4 - 7) ** 3 // 2", "17 % 5 * 2.5 - 1", "2 ** 0.5 * 2 ** 0.5", "-3 ** 2 + 4 / 8"):
        assert float(calculator(expression)) == pytest.approx(eval(expression))  # noqa: S307
    assert float(calculator("tan(1) / atan(1)")) == math.tan(1) / math.atan(1)
