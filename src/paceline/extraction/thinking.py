"""What is thought and what is said: `<think>...</think>` and, in the tutorial style, `<reasoning>...</reasoning>`."""

import re

OPEN_THINK, CLOSE_THINK = "<think>", "</think>"
OPEN_REASONING, CLOSE_REASONING = "<reasoning>", "</reasoning>"

THINKING = ("think", "reasoning")
"""Tags whose content can hold no answer."""

_ANY_TAG = re.compile(r"(</?(?:think|reasoning)>)")


def prefill(prompt: str) -> str:
    r"""The end of a prompt that has already opened `<think>` or `<reasoning>`, space included; empty where none has.

    >>> prefill("What is 6 * 7?\n<think>\n")
    '<think>\n'
    """
    text = prompt.rstrip()
    opened = next((tag for tag in (OPEN_THINK, OPEN_REASONING) if text.endswith(tag)), None)
    return "" if opened is None else prompt[len(text) - len(opened) :]


def prefills_think(prompt: str) -> bool:
    """Whether the chat template has already opened the thinking, so that the completion starts inside it."""
    return prefill(prompt) != ""


def visible_text(completion: str, *, prefilled: bool = False, tags: tuple[str, ...] = THINKING) -> str:
    """The completion without its thinking; nothing inside `<think>` or `<reasoning>` can be an answer.

    An unclosed thought runs to the end; a closing tag that nothing opened ends a thought that began with the text.
    `prefilled`: the prompt has opened it (see `prefills_think`). `tags`: which of the two count as thinking.

    >>> visible_text("<think>maybe 41</think> 42")
    ' 42'
    """
    kept = list[str]()
    closer: str | None = "" if prefilled else None  # "": any of the closing tags
    for place, piece in enumerate(_ANY_TAG.split(completion)):
        if place % 2 == 0 or piece.strip("</>") not in tags:
            if closer is None:
                kept.append(piece)
        elif not piece.startswith("</"):
            closer = piece.replace("<", "</") if closer is None else closer
        elif closer is None:
            kept.clear()
        elif closer in ("", piece):
            closer = None
    return "".join(kept)
