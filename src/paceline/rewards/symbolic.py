r"""Symbolic equality by the math-verify package, behind cheap checks of what it would have to compute.

The package bounds its time by SIGALRM, which exists in the main thread only. There each step has two seconds;
in another thread only the checks of `is_cheap` stand between a hostile answer and a long computation. A pool of
processes that can be killed is to replace both.
"""

import logging
import math
import re
import threading
from functools import lru_cache
from typing import Any

MAX_LENGTH = 4096
"""Characters; nothing longer is compared as maths."""
MAX_DEPTH = 16
"""Nested brackets; the LaTeX grammar needs about twice the time for each five levels more."""
STEP_SECONDS = 2
MAX_EXPONENT = 32
"""Product of the exponents that stand on brackets, times how many brackets and fractions there are."""
MAX_TERMS = 5000
"""Terms of the expression when its products and powers of sums are written out."""

_FORBIDDEN = re.compile(
    r"""\\(?:sum|prod|int|iint|oint|lim|limsup|liminf)(?![a-zA-Z])  # unbounded work, never a final answer
    | \^\s*(?:\{[^{}]*(?:[\^!]|\{)|[^\s{}]\s*\^)                    # a tower, or a factorial as an exponent
    | [)\]}!]\s*!                                                   # factorial of something computed
    | [0-9]{31} | [0-9]{5}\s*! | [0-9]{4}\s*!""",
    re.VERBOSE,
)
_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc|log|ln|exp|arc[a-z]+|sinh|cosh|tanh)(?![a-zA-Z])")
_EXPONENT = re.compile(r"([)\]}]|.)\s*\^\s*(?:\{\s*-?\s*([0-9]+)[^{}]*\}|([0-9]))", re.DOTALL)
_SYMBOL = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z](?:_\{?\w+\}?)?")
_COUNTING = re.compile(r"!|\\[dt]?binom")


def is_cheap(text: str) -> bool:
    """Whether comparing this text as maths is bounded work: no towers, large factorials, deep nesting."""
    if len(text) > MAX_LENGTH or bracket_depth(text) > MAX_DEPTH or _FORBIDDEN.search(text):
        return False
    if len(_FUNCTION.findall(text)) > 6 or (_COUNTING.search(text) and re.search(r"[0-9]{4}", text)):
        return False
    exponents = [(base in ")]}", int(braced or bare)) for base, braced, bare in _EXPONENT.findall(text)]
    of_brackets = math.prod(max(1, power) for is_bracket, power in exponents if is_bracket)
    if of_brackets > MAX_EXPONENT or any(power > 1000 for _, power in exponents):
        return False
    symbols = len(set(_SYMBOL.findall(text)))
    degree = of_brackets * (text.count("(") + text.count(r"\frac"))
    return symbols == 0 or (degree <= MAX_EXPONENT and math.comb(symbols + degree, symbols) <= MAX_TERMS)


def bracket_depth(text: str) -> int:
    """How deep round, square and curly brackets nest."""
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest


def symbolic_equal(gold: str, answer: str) -> bool:
    """Whether math-verify shows the two LaTeX texts to be equal; False when it cannot in time or at all.

    A decimal counts as equal to a symbolic number when they agree to 12 decimal places.
    """
    if not all(is_cheap(text) and _braces_close(text) for text in (gold, answer)):
        return False
    limit = _step_seconds()
    return bool(
        _math_verify().verify(_parsed(gold, limit), _parsed(answer, limit), float_rounding=12, timeout_seconds=limit)
    )


def _braces_close(text: str) -> bool:
    """Whether every brace has its partner, so that the text stays inside the box that it is parsed in."""
    depth = 0
    for brace in re.findall(r"\\.|[{}]", text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    return depth == 0


def _step_seconds() -> int | None:
    """Limit of one parse or comparison; None where the package's signal cannot be used."""
    return STEP_SECONDS if threading.current_thread() is threading.main_thread() else None


@lru_cache(maxsize=1)
def _math_verify() -> Any:
    """The package, imported at first use (a third of a second), its log of refused answers turned off."""
    import math_verify

    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return math_verify


@lru_cache(maxsize=16384)
def _parsed(text: str, limit: int | None) -> list[Any]:
    package = _math_verify()
    target = package.LatexExtractionConfig(boxed_match_priority=0)
    expressions = package.parse(rf"\boxed{{{text}}}", [target], fallback_mode="no_fallback", parsing_timeout=limit)
    return list(expressions)
