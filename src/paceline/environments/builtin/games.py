"""What the games share: the number that a turn means, where their first words stand, and what they say."""

import re
from collections.abc import Mapping
from typing import Any

from paceline.environments import Observation

_NUMBER = re.compile(r"-?\d+")
MOST_DIGITS = 9


def last_number(text: str) -> int | None:
    """Return the last whole number of a text; None if there is none, or it is longer than any of a game.

    >>> last_number("<think>3 or 5?</think> I say 5."), last_number("five")
    (5, None)
    """
    numbers = _NUMBER.findall(text)
    return int(numbers[-1]) if numbers and len(numbers[-1].lstrip("-")) <= MOST_DIGITS else None


def behind_prompt(task: Mapping[str, Any], text: str) -> str:
    """Return a game's first words as text to add to the prompt's last message: on a line of their own."""
    messages = task["messages"]
    has_words = bool(messages) and bool(str(messages[-1]["content"]).strip())
    return f"\n{text}" if has_words else text


def said(
    text: str, *, reward: float | None = 0.0, done: bool = False, calls: int = 0, failed_calls: int = 0
) -> Observation:
    """Return one message to the player, with the reward of the turn."""
    message = {"role": "user", "content": text}
    return Observation(messages=(message,), reward=reward, done=done, calls=calls, failed_calls=failed_calls)
