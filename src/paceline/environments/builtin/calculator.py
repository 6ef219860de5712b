"""`calculator`: arithmetic, exact where it can be.

| an expression                                  | the result                                                |
|------------------------------------------------|-----------------------------------------------------------|
| `17 * 24`, `2^10`, `(1 + 2) × 3`               | the whole number                                          |
| `0.1 + 0.2`, `1/3`                             | `0.3`, `0.3333333333333333`: exact inside, then a float   |
| `7 // 2`, `-7 % 3`                             | `3`, `2`, as in Python                                    |
| `sqrt(2)`, `log(8, 2)`, `sin(pi / 2)`          | floats, written as whole numbers where they are           |
| `min(3, 1)`, `max`, `abs`, `round(2.5)`        | exact; halves are rounded to the even number              |
| `gcd(12, 18)`, `factorial(5)`, `floor`, `ceil` | the whole number                                          |
| `1/0`, `sqrt(-1)`, `2 +`, `import os`          | an error that says why                                    |
| longer than 1,000 characters, or a number of more than 4,000 digits | an error                             |
"""

import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction

from paceline.chat.tools import text_schema
from paceline.environments.tools import CallError

Number = int | Fraction | float

MOST_CHARACTERS = 1000
MOST_DEPTH = 50
MOST_BITS = 13_000  # Bits of a number: fewer than 4,000 digits, so Python writes and reads it
_TOKEN = re.compile(
    r"\s*(?:(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|([A-Za-z_]\w*)|(\*\*|//|[-+*/%^(),×÷−]))"  # noqa: RUF001
)
TOO_LARGE = "the number is too large or too small"
_SPELLINGS = {"^": "**", "×": "*", "÷": "/", "−": "-"}  # noqa: RUF001
_CONSTANTS = {"pi": math.pi, "e": math.e}


SCHEMA = text_schema(
    "calculator",
    "Calculate the value of an arithmetic expression.",
    expression="Numbers with + - * / // % ** and brackets, and functions such as sqrt, log, sin, min, max and round.",
)


class ExpressionError(ValueError):
    """Reason why an expression has no value."""


def calculator(expression: str) -> str:
    """Calculate the value of an arithmetic expression.

    Args:
        expression: Numbers with + - * / // % ** and brackets, and functions such as sqrt, log, sin, min, max and round.
    """
    try:
        return written(value_of(expression))
    except ExpressionError as error:
        raise CallError(f"Error: {error}") from error
    except OverflowError as error:  # a fraction is computed with as it is, and only written as a float
        raise CallError(f"Error: {TOO_LARGE}") from error


def value_of(expression: str) -> Number:
    """Return the value of an expression.

    >>> value_of("2 * (3 + 4) ** 2"), value_of("1/3 + 1/6")
    (98, Fraction(1, 2))

    Raises:
        ExpressionError: it is none, is too large or has no value.
    """
    if len(expression) > MOST_CHARACTERS:
        raise ExpressionError(f"an expression may have {MOST_CHARACTERS} characters, this has {len(expression)}")
    tokens = _tokens(expression)
    try:
        value = _evaluate(tokens)
    except ZeroDivisionError as error:
        raise ExpressionError("division by zero") from error
    except OverflowError as error:
        raise ExpressionError(TOO_LARGE) from error
    if tokens:
        raise ExpressionError(f"an operator is missing before {tokens[-1]!r}")
    return value


def written(value: Number) -> str:
    """Return a number as text: a whole number, or a float as Python writes it."""
    if isinstance(value, Fraction):
        value = value.numerator if value.denominator == 1 else float(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return str(value)


def _tokens(expression: str) -> list[str]:
    """Return the tokens, the last one first, so that `pop` takes the next."""
    tokens, start = list[str](), 0
    text = expression.rstrip()
    while start < len(text):
        match = _TOKEN.match(text, start)
        if match is None:
            raise ExpressionError(f"{text[start:].strip()[:20]!r} is no arithmetic")
        token = next(group for group in match.groups() if group is not None)
        tokens.append(_SPELLINGS.get(token, token))
        start = match.end()
    return tokens[::-1]


def _evaluate(tokens: list[str], binding: int = 0, depth: int = 0) -> Number:
    """Take an expression from the tokens, up to an operator that binds less than `binding`, and return its value.

    Precedence climbing: operators of equal binding are computed from left to right, powers from right to left.
    `depth` counts the brackets, signs and powers around the expression.
    """
    if depth > MOST_DEPTH:
        raise ExpressionError(f"more than {MOST_DEPTH} levels of brackets")
    value = _operand(tokens, depth)
    while tokens and _BINDINGS.get(tokens[-1], -1) >= binding:
        operator = tokens.pop()
        if operator == "**":
            value = _bounded(_raised(value, _evaluate(tokens, SIGN, depth + 1)))
        else:
            value = _bounded(_OPERATORS[operator](value, _evaluate(tokens, _BINDINGS[operator] + 1, depth)))
    return value


def _operand(tokens: list[str], depth: int) -> Number:
    """Take a number, a constant, a call, a bracket or a signed operand from the tokens and return its value."""
    if not tokens:
        raise ExpressionError("the expression ends where a number is missing")
    token = tokens.pop()
    if token in ("+", "-"):
        value = _evaluate(tokens, SIGN, depth + 1)
        return -value if token == "-" else value
    if token == "(":
        value = _evaluate(tokens, depth=depth + 1)
        _close(tokens)
        return value
    if token[0].isdigit() or token[0] == ".":
        return _bounded(_number(token))
    if token in _CONSTANTS:
        return _CONSTANTS[token]
    if token in FUNCTIONS:
        return _call(token, tokens, depth + 1)
    if token[0].isalpha() or token[0] == "_":
        raise ExpressionError(f"there is no {token[:20]!r}; the functions are {', '.join(FUNCTIONS)}")
    raise ExpressionError(f"a number is missing before {token!r}")


def _call(name: str, tokens: list[str], depth: int) -> Number:
    if not tokens or tokens.pop() != "(":
        raise ExpressionError(f"{name} needs its arguments in brackets")
    arguments = list[Number]()
    while tokens[-1:] != [")"]:
        arguments.append(_evaluate(tokens, depth=depth))
        if tokens[-1:] != [","]:
            break
        tokens.pop()
    _close(tokens)
    try:
        return _bounded(FUNCTIONS[name](*arguments))
    except ExpressionError:
        raise
    except (TypeError, ValueError) as error:  # their own words differ from Python to Python
        raise ExpressionError(f"{name} has no value for ({', '.join(map(written, arguments))})") from error


def _close(tokens: list[str]) -> None:
    if not tokens or tokens.pop() != ")":
        raise ExpressionError("a bracket is not closed")


def _number(token: str) -> Number:
    mantissa, _, exponent = token.lower().partition("e")
    if exponent and abs(int(exponent)) > MOST_BITS // 4:
        raise ExpressionError(TOO_LARGE)
    return Fraction(mantissa.removesuffix(".")) * Fraction(10) ** int(exponent or 0)


def _divided(left: Number, right: Number) -> Number:
    if right == 0:
        raise ZeroDivisionError("division by zero")
    return left / right if isinstance(left, float) or isinstance(right, float) else Fraction(left) / Fraction(right)


def _raised(base: Number, exponent: Number) -> Number:
    if base == 0 and exponent < 0:
        raise ZeroDivisionError
    if isinstance(base, float) or not isinstance(exponent, int):
        if base < 0 and not float(exponent).is_integer():
            raise ExpressionError("a power of a negative number has no real value")
        try:
            return math.pow(base, exponent)
        except ValueError as error:  # 0 to a negative power, which a float has rounded to 0
            raise ExpressionError("the power has no value") from error
    exact = Fraction(base)
    bits = max(abs(exact.numerator), exact.denominator).bit_length()
    if bits > 1 and bits * abs(exponent) > 2 * MOST_BITS:  # the exact bound is `_bounded`'s
        raise ExpressionError(TOO_LARGE)
    return exact**exponent


def _whole(value: Number) -> int:
    if value != int(value):
        raise ExpressionError(f"{written(value)} is no whole number")
    return int(value)


def _factorial(value: Number) -> Number:
    if value > MOST_BITS // 10:
        raise ExpressionError(TOO_LARGE)
    return math.factorial(_whole(value))


def _rounded(value: Number, digits: Number = 0) -> Number:
    places = _whole(digits)
    if abs(places) > MOST_BITS // 4:
        raise ExpressionError(TOO_LARGE)
    return round(value, places) if isinstance(value, float) else round(Fraction(value), places)


_OPERATORS: Mapping[str, Callable[[Number, Number], Number]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": _divided,
    "//": lambda left, right: left // right,
    "%": lambda left, right: left % right,
}
SIGN = 2  # Binding of a sign: above that of a product, below that of a power
_BINDINGS = {"+": 0, "-": 0, "*": 1, "/": 1, "//": 1, "%": 1, "**": 3}

FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    "sqrt": math.sqrt,
    "abs": abs,
    "round": _rounded,
    "floor": math.floor,
    "ceil": math.ceil,
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
    "exp": math.exp,
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "asin": math.asin,
    "acos": math.acos,
    "atan": math.atan,
    "gcd": lambda *values: math.gcd(*map(_whole, values)),
    "lcm": lambda *values: math.lcm(*map(_whole, values)),
    "factorial": _factorial,
}
"""Functions by name; those of real numbers are floats. `log` takes a base."""


def _bounded(value: Number) -> Number:
    """Return a number that is not too large to compute with; a whole one as an integer.

    Raises:
        ExpressionError: it is, or it is no number.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ExpressionError(TOO_LARGE)
    elif max(abs(value.numerator), value.denominator).bit_length() > MOST_BITS:
        raise ExpressionError(TOO_LARGE)
    return value.numerator if isinstance(value, Fraction) and value.denominator == 1 else value
