"""Reward of the game Countdown: an expression that uses every given number once and has the target's value.

`accuracy` is no judge of this game. Many expressions are right, and it takes the bare target for one of them.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

ANSWER = re.compile(r"<answer>([^<]*)</answer>")
EXPRESSION = re.compile(r"[\d+\-*/() ]{1,200}")
"""What is parsed at all; nothing of it is run."""


def solves(completions: Sequence[str], reasoning_gym: Sequence[Mapping[str, Any]], **columns: object) -> list[float]:
    """1 where the last `<answer>` solves the row's game, else 0; `reasoning_gym` is a column of the dataset.

    >>> game = {"metadata": {"numbers": [3, 7, 2], "target": 17}}
    >>> solves(["<answer> 3 + 7*2 </answer>", "<answer>17</answer>"], [game, game])
    [1.0, 0.0]
    """
    pairs = zip(completions, reasoning_gym, strict=True)
    return [float(_is_solved(text, **game["metadata"])) for text, game in pairs]


def _is_solved(text: str, *, numbers: Sequence[int], target: int, **others: object) -> bool:
    answers = ANSWER.findall(text)
    written = answers[-1].strip() if answers else ""
    if not EXPRESSION.fullmatch(written):
        return False
    try:
        used = list[int]()
        return _value(ast.parse(written, mode="eval").body, used) == target and sorted(used) == sorted(numbers)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return False


def _value(node: ast.expr, used: list[int]) -> Fraction:
    """Return the exact value, and add the numbers that occur to `used`; ValueError: another kind of expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        used.append(node.value)
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, used)
    if not isinstance(node, ast.BinOp):
        raise ValueError("no sum, difference, product or quotient")
    left, right = _value(node.left, used), _value(node.right, used)
    match node.op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return left / right
    raise ValueError("no sum, difference, product or quotient")
