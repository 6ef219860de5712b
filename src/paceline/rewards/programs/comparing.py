"""Comparison of what a program printed or returned with what is expected: plain text and plain data only.

Order always counts, and so does every token: there is no comparison of sets, and none of sorted lines. Printed text is
compared as the checkers of programming contests do, token by token: how tokens lie on lines is not looked at.

| expected | printed or returned | equal |
|---|---|---|
| `1 2\\n3\\n` | `1  2 \\r\\n3\\n\\n`, `\\n1 2\\n3`, `1\\n2\\n3` | yes: space and line ends only part tokens |
| `1 2` | `2 1`, `12`, `1, 2` | no |
| `3` | `3.0`, `3.0000001`, `03` | no: a whole number is text as any other |
| `0.5`, `5e-1` | `0.50000001`, `.5` | yes: within 1e-6, of the value or at all |
| the value 3 | 3.0, true | no |
| the value 0.5 | 0.50000001 | yes; NaN is equal to nothing |
"""

import json
import math
import re

TOLERANCE = 1e-6  # As judges of programming contests have it: relative to the expected number, or absolute
MAX_DEPTH = 100  # Lists within lists of a value; deeper ones are equal to nothing

# ASCII digits: `float` alone would also take `1_000`, `nan` and the digits of other scripts.
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_MARKS_OF_A_FLOAT = re.compile(rb"[.eE]")


def same_output(expected: str, printed: str) -> bool:
    r"""Return whether two texts have the same tokens in the same order.

    Tokens are parted by ASCII space, line ends included. One that is expected with a decimal point or an exponent is a
    number, and equal within `TOLERANCE`; any other is equal to itself alone. Of what was printed, no more tokens are
    made than are expected, so that a flood costs neither memory nor time.

    >>> same_output("1 2.5\n", "\n1 2.50 \n\n"), same_output("1 2", "2 1"), same_output("3", "3.0")
    (True, False, False)
    """
    # Bytes are parted at ASCII space only, and hold any character that a text can.
    wanted = expected.encode("utf-8", "surrogatepass").split()
    got = printed.encode("utf-8", "surrogatepass").split(maxsplit=len(wanted))
    return len(wanted) == len(got) and all(map(_same_token, wanted, got))


def same_value(expected: object, returned: object, *, depth: int = MAX_DEPTH) -> bool:
    """Return whether two values, as `json.loads` gives them, are the same.

    Whole numbers, text, true, false and null are equal to themselves alone, and true is no number. A float is equal
    to any number within `TOLERANCE`. Lists are compared in order, objects by their keys, which are text.

    >>> same_value([1, 0.5], [1, 0.50000001]), same_value(3, 3.0), same_value(1, True)
    (True, False, False)
    """
    if isinstance(expected, float):
        return isinstance(returned, int | float) and not isinstance(returned, bool) and _close(expected, returned)
    if type(expected) is not type(returned):
        return False
    if isinstance(expected, list) and isinstance(returned, list):
        items = zip(expected, returned, strict=False)
        is_alike = depth > 0 and len(expected) == len(returned)
        return is_alike and all(same_value(*pair, depth=depth - 1) for pair in items)
    if isinstance(expected, dict) and isinstance(returned, dict):
        is_alike = depth > 0 and expected.keys() == returned.keys()
        return is_alike and all(same_value(value, returned[key], depth=depth - 1) for key, value in expected.items())
    return expected == returned


def parse_value(text: str) -> tuple[bool, object]:
    """Return whether a text is JSON that can be compared, and its value; numbers or nesting may be too large."""
    try:
        return True, json.loads(text)
    except (ValueError, RecursionError):
        return False, None


def _same_token(expected: bytes, printed: bytes) -> bool:
    if expected == printed:
        return True
    is_float = _NUMBER.fullmatch(expected) is not None and _MARKS_OF_A_FLOAT.search(expected) is not None
    return is_float and _NUMBER.fullmatch(printed) is not None and _close(float(expected), float(printed))


def _close(expected: float, got: float) -> bool:
    """Compare within the tolerance. Infinity equals nothing: every number beyond float64 becomes infinity."""
    try:
        number = float(got)
    except OverflowError:
        return False
    is_finite = math.isfinite(expected) and math.isfinite(number)
    return is_finite and math.isclose(expected, number, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
