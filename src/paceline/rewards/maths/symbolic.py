r"""Symbolic equality by the math-verify package. It runs in the worker processes of `verdicts`, which bound its time.

What could take a machine down before any limit bites is refused by `is_bounded`, which is plain text work and runs in
the caller.
"""

import logging
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

MAX_DIGITS = 10_000  # Digits of an integer power, a factorial or a binomial that is written out with numbers alone
MAX_FACTORIAL = 3000
MAX_FUNCTIONS = 12
"""Sines, logarithms and the like in one answer; simplifying takes exponential time in how deep they nest."""
NUMERIC_DIGITS = 30
"""Digits to which two expressions are evaluated; they differ where their values do by more than 1e-9 of the larger."""

_MAX_POWERS = 64
_POWER = re.compile(r"(?<![0-9.])([0-9]+) ?\^ ?(-?[0-9]+)")
_GROUPED = re.compile(r"[({]\s*(-?[0-9]+)\s*[)}]")
_FACTORIAL = re.compile(r"(?<![0-9])([0-9]+)\s*!")
_FACTORIAL_OF_NUMBERS = re.compile(r"[)\]}!]\s*!")
_BINOMIAL = re.compile(r"\\[dt]?binom ?\{? ?[0-9]{5}")
_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc|log|ln|exp|arc[a-z]+|sinh|cosh|tanh)(?![a-zA-Z])")
_VARIABLE = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]")


def is_bounded(text: str) -> bool:
    """Return whether the text is LaTeX with closed braces, with no number too large to write down: no `9^{9^{9}}`."""
    # Every brace has its partner, so that the text stays inside the box that it is parsed in.
    depth = 0
    for brace in re.findall(r"\\.|[{}]", text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    if depth or len(_FUNCTION.findall(text)) > MAX_FUNCTIONS:
        return False
    if any(len(match[1]) > 4 or int(match[1]) > MAX_FACTORIAL for match in _FACTORIAL.finditer(text)):
        return False
    if _BINOMIAL.search(text) or (_FACTORIAL_OF_NUMBERS.search(text) and not _VARIABLE.search(text)):
        return False
    # No power of integers, computed from the inside out, passes `MAX_DIGITS` digits.
    for _ in range(_MAX_POWERS):
        text = _GROUPED.sub(r"\1", text)
        match = _POWER.search(text)
        if match is None:
            return True
        base, power = int(match[1][:400]), abs(int(match[2][:20]))
        digits = power * math.log10(max(base, 1))
        if digits > MAX_DIGITS:
            return False
        text = f"{text[: match.start()]}{base**power if digits < 300 else 10**300}{text[match.end() :]}"
    return False


def prove(gold: str, answer: str) -> bool:
    """Return whether math-verify shows the two LaTeX texts to be equal; False when it cannot.

    A decimal counts as equal to a symbolic number when they agree to 12 decimal places and, as every two expressions,
    to nine significant digits. Values are compared first, at one point for expressions with variables: most wrong
    answers end there, in milliseconds, and never meet the simplifier.
    """
    try:
        expected, stated = _parsed(gold), _parsed(answer)
        if len(expected) != 1 or len(stated) != 1:
            return False
        from sympy import Basic

        gold_value, aligned = expected[0], stated[0]
        if isinstance(gold_value, Basic) and isinstance(aligned, Basic):
            # With the symbols of the gold answer: an `x` beside an `i` is read as complex, any other as real.
            known = {str(symbol): symbol for symbol in gold_value.free_symbols}
            aligned = aligned.xreplace({symbol: known.get(str(symbol), symbol) for symbol in aligned.free_symbols})
        if _values_differ(gold_value, aligned):
            return False
        return bool(_math_verify().verify(expected, [aligned], float_rounding=12, timeout_seconds=None))
    except _sympy_errors():
        return False


def parses(gold: str) -> bool:
    """Return whether math-verify reads the LaTeX and finds it equal to itself."""
    try:
        expected = _parsed(gold)
        return len(expected) == 1 and bool(_math_verify().verify(expected, expected, timeout_seconds=None))
    except _sympy_errors():
        return False


@lru_cache(maxsize=1)
def _sympy_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of sympy on meaningless input, such as a union of numbers, which proves nothing."""
    from sympy.polys.polyerrors import BasePolynomialError

    common = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
    return (*common, BasePolynomialError)


@lru_cache(maxsize=1)
def _math_verify() -> Any:
    """Import the package at first use (half a second) and silence its log of refused answers."""
    import math_verify

    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return math_verify


@lru_cache(maxsize=1024)
def _parsed(text: str) -> list[Any]:
    """Parse an expression into a list, as math-verify returns it; empty for a text that it cannot read."""
    from latex2sympy2_extended import NormalizationConfig
    from sympy import Expr, I

    package = _math_verify()
    # As math-verify does by default, but it removes no units, which may be variables.
    reading = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all")
    target = package.LatexExtractionConfig(boxed_match_priority=0, normalization_config=reading)
    latex = text.replace("°", r"^{\circ}")
    expressions = package.parse(rf"\boxed{{{latex}}}", [target], fallback_mode="no_fallback", parsing_timeout=None)
    # math-verify reads `i` as a variable, and it is the imaginary unit: (1+i)^2 is 2i.
    return [
        expression.xreplace({symbol: I for symbol in expression.free_symbols if str(symbol) == "i"})
        if isinstance(expression, Expr)
        else expression
        for expression in expressions
    ]


def _values_differ(gold: Any, answer: Any) -> bool:
    """Return whether two expressions have different finite values where their variables are the same real numbers."""
    from sympy import Expr, Rational

    if not isinstance(gold, Expr) or not isinstance(answer, Expr):
        return False
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
    # Positive numbers that no textbook formula treats in a special way.
    point = {symbol: Rational(1117 + 389 * index, 1009 + 97 * index) for index, symbol in enumerate(symbols)}
    values = [_value(expression, point) for expression in (gold, answer)]
    if values[0] is None or values[1] is None:
        return False
    return bool(abs(values[0] - values[1]) > 1e-9 * max(abs(values[0]), abs(values[1])))


def _value(expression: Any, point: Mapping[Any, Any]) -> Any:
    """Evaluate the expression at the point; None if the value is not reliable.

    With variables a complex value counts as none: math-verify takes variables for real, and branches may differ.
    """
    try:
        value = expression.subs(point).evalf(NUMERIC_DIGITS)
    except _sympy_errors():
        return None
    if not value.is_Number and (
        point or not value.is_number or not all(part.is_Number for part in value.as_real_imag())
    ):
        return None
    return value if value.is_finite else None
