"""A program between code fences."""

import re
from collections.abc import Iterator

from paceline.extraction.thinking import visible_text

PYTHON = ("python", "py", "python3")
"""Words after the opening fence that name the language."""

_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<ticks>`{3,})(?P<info>[^`]*)")


def last_code_block(text: str) -> str | None:
    r"""The last complete fence of Python outside the thinking; None without one.

    A fence that says `python`, `py` or `python3` goes before one that says nothing, which may hold what the program
    prints; one of another language is not taken. Opening and closing fence stand on lines of their own; a fence that
    is never closed is none.

    >>> last_code_block("```python\nprint(1)\n```\nIt prints:\n```\n1\n```")
    'print(1)\n'
    """
    named, bare = None, None
    for language, content in _fences(visible_text(text)):
        if language in PYTHON:
            named = content
        elif not language:
            bare = content
    return bare if named is None else named


def _fences(text: str) -> Iterator[tuple[str, str]]:
    """Language and content of each complete fence. An opening fence with a language ends an unclosed one as none."""
    opened: re.Match[str] | None = None
    content = list[str]()
    for line in text.splitlines(keepends=True):
        fence = _FENCE.fullmatch(line.rstrip())
        if opened is None or (fence and fence["info"].strip() and len(fence["ticks"]) <= len(opened["ticks"])):
            if fence:
                opened, content = fence, []
        elif fence and len(fence["ticks"]) >= len(opened["ticks"]):
            yield (opened["info"].split() or [""])[0].lower(), "".join(content)
            opened = None
        else:
            content.append(line.removeprefix(opened["indent"]))
