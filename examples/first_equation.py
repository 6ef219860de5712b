"""The reward of `make real`: does the first equation of an answer come out right?

A model that was taught no format states a number in many ways. An equation is what can be checked: the number behind
the first `=` is the answer, whatever stands around it.
"""

import re

RESULT = re.compile(r"=\s*(-?\d+)(?![\d.,]*\d)")


def first_equation(completions: list[str], answer: list[str], **columns: object) -> list[float]:
    """1.0 where the first equation's result is the answer, else 0.0."""
    return [float(stated(text) == gold) for text, gold in zip(completions, answer, strict=True)]


def stated(completion: str) -> str | None:
    """Return the result of the first equation; None if there is none.

    A number at the very end is none: the completion may have been cut within it.

    >>> stated("Tom has 3 - 1 = 2 books. So 5 = 5."), stated("There are 2."), stated("3 + 9 = 1")
    ('2', None, None)
    """
    found = RESULT.search(completion)
    return None if found is None or found.end() == len(completion) else found[1]
