r"""Answers inside `\boxed{...}`."""

import re

_AROUND = re.compile(r"(?:[a-zA-Z']{2,}|(?<![a-zA-Z])[aAI](?![a-zA-Z])|[\s.,:;!$*])*")
"""Words and their punctuation, which an answer may hold around its one box."""
_BOX_TOKEN = re.compile(r"(?P<box>\\boxed\s*\{)|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)


def _boxes(text: str) -> list[tuple[int, int, int]]:
    r"""Find every complete brace-matched `\boxed{...}`: start, start of its content, and end; sorted by start.

    Escaped braces (`\{`) are content. Places and not contents: boxes in boxes would be copied once per level.
    """
    found: list[tuple[int, int, int]] = []
    unclosed: list[tuple[bool, int, int]] = []  # is a box, where it starts, where its content starts
    for token in _BOX_TOKEN.finditer(text):
        if token["box"] or token["open"]:
            unclosed.append((bool(token["box"]), token.start(), token.end()))
        elif token["close"] and unclosed:
            is_box, start, content_start = unclosed.pop()
            if is_box:
                found.append((start, content_start, token.end()))
    return sorted(found)


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last complete `\boxed{...}`; None without one. An inner box counts as later.

    >>> last_boxed(r"\boxed{1}, so \boxed{\frac{1}{2}} and \boxed{")
    '\\frac{1}{2}'
    """
    found = _boxes(text)
    return text[found[-1][1] : found[-1][2] - 1].strip() if found else None


def unboxed(answer: str) -> str:
    r"""Return the innermost content of an answer that is one box, or one box among words; any other answer as it is.

    >>> unboxed(r"$\boxed{42}$"), unboxed(r"The answer is \boxed{42}."), unboxed(r"2\boxed{42}")
    ('42', '42', '2\\boxed{42}')
    """
    found = _boxes(answer)
    if not found:
        return answer
    start, _, end = found[0]
    around = answer[:start], answer[end:]
    if not all(_AROUND.fullmatch(part) for part in around):
        return answer
    _, content_start, end = found[-1]
    return answer[content_start : end - 1].strip()
