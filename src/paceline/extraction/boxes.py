r"""The answer inside `\boxed{...}`."""

import re

_BOX_TOKEN = re.compile(r"(?P<box>\\boxed\s*\{)|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)


def boxes(text: str) -> list[tuple[int, int, str]]:
    r"""Every complete brace-matched `\boxed{...}`: (start, end, stripped content), in the order they start.

    Escaped braces (`\{`) are content.
    """
    found: list[tuple[int, int, str]] = []
    unclosed: list[tuple[bool, int, int]] = []  # is a box, where it starts, where its content starts
    for token in _BOX_TOKEN.finditer(text):
        if token["box"] or token["open"]:
            unclosed.append((bool(token["box"]), token.start(), token.end()))
        elif token["close"] and unclosed:
            is_box, start, content_start = unclosed.pop()
            if is_box:
                found.append((start, token.end(), text[content_start : token.start()].strip()))
    return sorted(found)


def last_boxed(text: str) -> str | None:
    r"""Content of the last complete `\boxed{...}`; None without one. An unclosed box is none, an inner box is later.

    >>> last_boxed(r"\boxed{1}, so \boxed{\frac{1}{2}} and \boxed{")
    '\\frac{1}{2}'
    """
    found = boxes(text)
    return found[-1][2] if found else None


def unboxed(answer: str) -> str:
    r"""The content of an answer that is one box and nothing else (`$` around it aside); any other answer as it is."""
    text = answer.strip().strip("$").strip()
    found = boxes(text)
    return found[-1][2] if found and (found[0][0], found[0][1]) == (0, len(text)) else answer
