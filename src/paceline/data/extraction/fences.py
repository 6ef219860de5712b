"""Programs between code fences."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from paceline.data.extraction.thinking import ThoughtReader

_PYTHON = re.compile(r"py(?:thon)?(?:3(?:\.[0-9]+)*)?")
"""Language names of Python after an opening fence, such as `python`, `py`, `python3` and `python3.12`."""

_FENCE = re.compile(
    r"(?P<answer>[ \t]*<answer>)?(?P<indent>[ \t]*)(?P<marks>`{3,}(?=[^`]*$)|~{3,}(?!~))(?P<info>.*?)(?:</answer>)?"
)


@dataclass(slots=True)
class _Opened:
    """A fence that may still be closed."""

    indent: str
    marks: str
    language: str
    content: list[str] = field(default_factory=list)


def last_code_block(text: str, *, prefilled: bool = False) -> str | None:
    r"""Return the last complete fence of Python outside the thinking; None without one.

    A fence marked `python`, `py`, `python3` or `python3.12` goes before an unmarked one, which may hold the program's
    output. One of another language is not taken. Both fences, of backticks or tildes, stand on lines of their own;
    `<answer>` may stand before the opening one and `</answer>` after the closing one. A fence that is never closed is
    none. A tag of thinking inside a complete fence is part of the program. `prefilled`: the prompt has opened the
    thinking (see `prefills_think`).

    >>> last_code_block("```python\nprint(1)\n```\nIt prints:\n```\n1\n```")
    'print(1)\n'
    """
    named, bare = None, None
    for language, content in _fences(text, ThoughtReader(prefilled=prefilled)):
        if content is None:
            named, bare = None, None
        elif _PYTHON.fullmatch(language):
            named = content
        elif not language:
            bare = content
    return bare if named is None else named


def _fences(text: str, thoughts: ThoughtReader) -> Iterator[tuple[str, str | None]]:
    """Yield language and content of each complete fence; the content is None if all before was thinking.

    An opening fence with a language ends an unclosed one as none, whose lines are then read for tags of thinking.
    """
    opened: _Opened | None = None
    for line in text.splitlines(keepends=True):
        fence = None if opened is None else _FENCE.fullmatch(line.rstrip())
        is_bare = fence is not None and not fence["info"].strip()
        if opened is not None and fence and is_bare and not fence["answer"] and fence["marks"].startswith(opened.marks):
            yield opened.language, "".join(opened.content)
            opened = None
        elif opened is not None and (fence is None or is_bare or not opened.marks.startswith(fence["marks"])):
            opened.content.append(line.removeprefix(opened.indent))
        else:
            for piece in (*(opened.content if opened else ()), line):
                visible = thoughts.visible(piece)
                if thoughts.is_restarted:
                    yield "", None
            opened, fence = None, None if thoughts.is_thinking else _FENCE.fullmatch(visible.rstrip())
            if fence is not None:
                opened = _Opened(fence["indent"], fence["marks"], (fence["info"].split() or [""])[0].lower())
    if opened is not None:
        thoughts.visible("".join(opened.content))
        if thoughts.is_restarted:
            yield "", None
