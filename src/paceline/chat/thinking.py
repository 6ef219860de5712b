"""Removal of thinking: `<think>...</think>` and, in the tutorial style, `<reasoning>...</reasoning>`."""

import re

OPEN_THINK, CLOSE_THINK = "<think>", "</think>"
OPEN_REASONING, CLOSE_REASONING = "<reasoning>", "</reasoning>"

THINKING = ("think", "reasoning")  # Tags whose content can hold no answer

_ANY_TAG = re.compile(r"(</?(?:think|reasoning)>)")


def prefill(prompt: str) -> str:
    r"""Return the end of a prompt that has already opened `<think>` or `<reasoning>`, space included; else "".

    >>> prefill("What is 6 * 7?\n<think>\n")
    '<think>\n'
    """
    text = prompt.rstrip()
    opened = next((tag for tag in (OPEN_THINK, OPEN_REASONING) if text.endswith(tag)), None)
    return "" if opened is None else prompt[len(text) - len(opened) :]


def prefills_think(prompt: str) -> bool:
    """Return True if the chat template has opened the thinking, so that the completion starts inside it."""
    return prefill(prompt) != ""


def visible_text(completion: str, *, prefilled: bool = False, tags: tuple[str, ...] = THINKING) -> str:
    """Return the completion without its thinking, which can hold no answer.

    An unclosed thought runs to the end; a closing tag that nothing opened ends a thought that began with the text.
    `prefilled`: the prompt has opened it (see `prefills_think`). `tags`: which of the two count as thinking.

    >>> visible_text("<think>maybe 41</think> 42")
    ' 42'
    """
    return ThoughtReader(prefilled=prefilled, tags=tags).visible(completion)


def opening_thought(completion: str) -> str | None:
    r"""Return the closed `<think>` block that a completion begins with, opened by the prompt or by itself; None: none.

    >>> opening_thought("<think>\nmaybe 41\n</think>\n42"), opening_thought("42 <think>no</think>")
    ('maybe 41', None)
    """
    thought, closed, _ = completion.partition(CLOSE_THINK)
    opened, tag, inside = thought.partition(OPEN_THINK)
    if not closed or (tag and opened.strip()):
        return None
    return (inside if tag else opened).strip("\n") or None


class ThoughtReader:
    """Removes the thinking from a text read piece by piece, no tag cut in two; see `visible_text`."""

    def __init__(self, *, prefilled: bool = False, tags: tuple[str, ...] = THINKING) -> None:
        """`prefilled`: the text starts inside a thought."""
        self._tags = tags
        self._closer: str | None = "" if prefilled else None  # "": any of the closing tags
        self.is_restarted = False
        """True if the last piece ended a thought that began with the text: everything before was thinking."""

    @property
    def is_thinking(self) -> bool:
        """True if the next piece starts inside a thought."""
        return self._closer is not None

    def visible(self, piece: str) -> str:
        """Return the part of the next piece that is not thinking."""
        self.is_restarted = False
        kept = list[str]()
        for index, part in enumerate(_ANY_TAG.split(piece)):
            if index % 2 == 0 or part.strip("</>") not in self._tags:
                if self._closer is None:
                    kept.append(part)
            elif not part.startswith("</"):
                self._closer = part.replace("<", "</") if self._closer is None else self._closer
            elif self._closer is None:
                self.is_restarted = True
                kept.clear()
            elif self._closer in ("", part):
                self._closer = None
        return "".join(kept)
