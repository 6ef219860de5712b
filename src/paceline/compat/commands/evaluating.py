"""A shell's tests and arithmetic, where the script alone decides the result."""

import ast
import operator
import re
from collections.abc import Sequence

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
UNKNOWN = "\0"
"""Character around the text of an expansion that only a shell can make."""


def truth(words: Sequence[str]) -> bool | None:
    """Return whether a test of texts and numbers succeeds, as assignments always do; None where only a shell knows.

    >>> truth(["[[", "-n", "", "]]"]), truth(["!", "[", "a", "=", "b", "]"]), truth(["[", "-f", "x", "]"])
    (False, True, None)
    """
    if words[:1] == ["!"]:
        plain = truth(words[1:])
        return None if plain is None else not plain
    if words and all(ASSIGNMENT.match(word) for word in words):
        return True
    closing = {"[": ["]"], "[[": ["]]"], "test": []}.get(words[0] if words else "")
    if closing is None or list(words[-1:] if closing else []) != closing or any(UNKNOWN in word for word in words):
        return None
    match words[1 : -1 if closing else None]:
        case ["!", *rest]:
            return truth(["!", words[0], *rest, *closing])
        case ["-n" | "-z" as sign, text]:
            return (text != "") is (sign == "-n")
        case ["-n" | "-z" as sign] if words[0] == "[[":  # an unquoted variable that is empty
            return sign == "-z"
        case [left, "=" | "==" | "!=" as sign, right] if not re.search(r"[*?\[]", right):
            return (left == right) is (sign != "!=")
        case [left, sign, right] if sign in _COMPARED and left.isdecimal() and right.isdecimal():
            return bool(_COMPARED[sign](int(left), int(right)))
    return None


_COMPARED = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}


def sum_of(text: str) -> int | None:
    """Return the value of an expression of whole numbers with + - * / and brackets; None for anything else.

    Quotients are cut towards 0, as a shell does.

    >>> sum_of("2 * (8 + 1) / 3"), sum_of("(1 - 4) / 2"), sum_of("2 ** 9")
    (6, -1, None)
    """

    def value(node: ast.expr) -> int | None:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if not isinstance(node, ast.BinOp):
            return None
        left, right = value(node.left), value(node.right)
        if left is None or right is None or (isinstance(node.op, ast.Div) and right == 0):
            return None
        if isinstance(node.op, ast.Div):
            quotient = abs(left) // abs(right)
            return quotient if (left < 0) == (right < 0) else -quotient
        results = {ast.Add: left + right, ast.Sub: left - right, ast.Mult: left * right}
        return results.get(type(node.op))

    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError):
        return None
