"""Answers between `<answer>` and `</answer>`."""

from collections.abc import Sequence

OPEN_ANSWER, CLOSE_ANSWER = "<answer>", "</answer>"


def last_answer_tag(text: str) -> str | None:
    """Return the content of the last complete `<answer>...</answer>`, stripped; None without one.

    >>> last_answer_tag("<answer>41</answer> no: <answer>42</answer> or <answer>43")
    '42'
    """
    for part in reversed(text.split(OPEN_ANSWER)[1:]):
        content, closed, _ = part.partition(CLOSE_ANSWER)
        if closed:
            return content.strip()
    return None


def stand_once_in_order(text: str, marks: Sequence[str]) -> bool:
    """Return True if each mark stands exactly once in the text, in this order.

    >>> stand_once_in_order("<answer>42</answer>", ["<answer>", "</answer>"])
    True
    """
    if any(text.count(mark) != 1 for mark in marks):
        return False
    places = [text.index(mark) for mark in marks]
    return places == sorted(places)
