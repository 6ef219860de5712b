"""Where the answer stands in a completion: the one place that looks for tags, boxes and `####`.

Every function here is linear in the length of the text, whatever the text holds.
"""

import re

OPEN_THINK, CLOSE_THINK = "<think>", "</think>"
OPEN_ANSWER, CLOSE_ANSWER = "<answer>", "</answer>"

_THINK_TAG = re.compile(r"(</?think>)")
_BOX_TOKEN = re.compile(r"(?P<box>\\boxed\s*\{)|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)


def prefills_think(prompt: str) -> bool:
    """Whether the chat template has already opened `<think>`, so that the completion starts inside it."""
    return prompt.rstrip().endswith(OPEN_THINK)


def visible_text(completion: str, *, prefilled: bool = False) -> str:
    """The completion without its thinking; nothing inside `<think>...</think>` can be an answer.

    An unclosed `<think>` runs to the end; a `</think>` that nothing opened ends a thought that began with the
    text. `prefilled`: the prompt ends with `<think>` (see `prefills_think`).

    >>> visible_text("<think>maybe 41</think> 42")
    ' 42'
    """
    thinking, kept = prefilled, list[str]()
    for piece in _THINK_TAG.split(completion):
        if piece == OPEN_THINK:
            thinking = True
        elif piece == CLOSE_THINK:
            if not thinking:
                kept.clear()
            thinking = False
        elif not thinking:
            kept.append(piece)
    return "".join(kept)


def last_answer_tag(text: str) -> str | None:
    """Content of the last complete `<answer>...</answer>`, stripped; None without one.

    >>> last_answer_tag("<answer>41</answer> no: <answer>42</answer> or <answer>43")
    '42'
    """
    for part in reversed(text.split(OPEN_ANSWER)[1:]):
        content, closed, _ = part.partition(CLOSE_ANSWER)
        if closed:
            return content.strip()
    return None


def boxes(text: str) -> list[tuple[int, int, str]]:
    r"""Every complete brace-matched `\boxed{...}`: (start, end, stripped content), in the order they start."""
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


def last_hashes(text: str) -> str | None:
    """The line after the last `####` (the form of GSM8K), stripped; None without one."""
    _, mark, tail = text.rpartition("####")
    lines = tail.strip().splitlines()
    return lines[0].strip() if mark and lines else None


def unboxed(answer: str) -> str:
    r"""The content of an answer that is one box and nothing else (`$` around it aside); any other answer as it is."""
    text = answer.strip().strip("$").strip()
    found = boxes(text)
    return found[-1][2] if found and (found[0][0], found[0][1]) == (0, len(text)) else answer


def final_answer(text: str) -> str | None:
    r"""The answer of a visible text: last `<answer>`, else last `\boxed{}`, else what follows the last `####`."""
    for find in (last_answer_tag, last_boxed, last_hashes):
        answer = find(text)
        if answer is not None:
            return unboxed(answer)
    return None
