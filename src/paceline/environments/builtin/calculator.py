"""`calculator`: arithmetic, exact where it can be.

| an expression                                  | the answer                                                |
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

from paceline.chat.schemas import text_schema
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
    try:
        return _Reader(_tokens(expression)).whole()
    except ZeroDivisionError as error:
        raise ExpressionError("division by zero") from error
    except OverflowError as error:
        raise ExpressionError(TOO_LARGE) from error


def written(value: Number) -> str:
    """Return a number as text: a whole number, or a float as Python writes it."""
    if isinstance(value, Fraction):
        value = value.numerator if value.denominator == 1 else float(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return str(value)


def _tokens(expression: str) -> list[str]:
    found, at = list[str](), 0
    text = expression.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ExpressionError(f"{text[at:].strip()[:20]!r} is no arithmetic")
        token = next(group for group in match.groups() if group is not None)
        found.append(_SPELLINGS.get(token, token))
        at = match.end()
    return found


class _Reader:
    """Reader of tokens by recursive descent; operators bind as in Python."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens, self._at, self._depth = tokens, 0, 0

    def whole(self) -> Number:
        """Return the value of all tokens."""
        value = self._sum()
        if self._next() is not None:
            raise ExpressionError(f"an operator is missing before {self._next()!r}")
        return value

    def _next(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _take(self, *wanted: str) -> str | None:
        """Return the next token and go on, if it is one of these."""
        token = self._next()
        if token is None or token not in wanted:
            return None
        self._at += 1
        return token

    def _sum(self) -> Number:
        value = self._product()
        while operator := self._take("+", "-"):
            value = _bounded(_OPERATORS[operator](value, self._product()))
        return value

    def _product(self) -> Number:
        value = self._signed()
        while operator := self._take("*", "/", "//", "%"):
            value = _bounded(_OPERATORS[operator](value, self._signed()))
        return value

    def _signed(self) -> Number:
        sign = self._take("+", "-")
        if sign is None:
            return self._power()
        with _Deeper(self):
            value = self._signed()
        return -value if sign == "-" else value

    def _power(self) -> Number:
        base = self._atom()
        if self._take("**") is None:
            return base
        with _Deeper(self):
            return _bounded(_raised(base, self._signed()))

    def _atom(self) -> Number:
        token = self._next()
        if token is None:
            raise ExpressionError("the expression ends where a number is missing")
        self._at += 1
        if token == "(":
            with _Deeper(self):
                value = self._sum()
            self._close()
            return value
        if token[0].isdigit() or token[0] == ".":
            return _bounded(_number(token))
        if token in _CONSTANTS:
            return _CONSTANTS[token]
        if token in FUNCTIONS:
            return self._called(token)
        if token[0].isalpha() or token[0] == "_":
            raise ExpressionError(f"there is no {token[:20]!r}; the functions are {', '.join(FUNCTIONS)}")
        raise ExpressionError(f"a number is missing before {token!r}")

    def _called(self, name: str) -> Number:
        if self._take("(") is None:
            raise ExpressionError(f"{name} needs its arguments in brackets")
        arguments = list[Number]()
        with _Deeper(self):
            while self._next() != ")":
                arguments.append(self._sum())
                if self._take(",") is None:
                    break
        self._close()
        try:
            return _bounded(FUNCTIONS[name](*arguments))
        except (TypeError, ValueError) as error:  # their own words differ from Python to Python
            if isinstance(error, ExpressionError):
                raise
            given = ", ".join(map(written, arguments))
            raise ExpressionError(f"{name} has no value for ({given})") from error

    def _close(self) -> None:
        if self._take(")") is None:
            raise ExpressionError("a bracket is not closed")


class _Deeper:
    """One more level of brackets, signs or powers, as long as it is open."""

    def __init__(self, reader: _Reader) -> None:
        self._reader = reader

    def __enter__(self) -> None:
        self._reader._depth += 1
        if self._reader._depth > MOST_DEPTH:
            raise ExpressionError(f"more than {MOST_DEPTH} levels of brackets")

    def __exit__(self, *_: object) -> None:
        self._reader._depth -= 1


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
