"""Two games in words. Each says its rules first, and the last number of a turn is the move."""

import random
import re
from collections.abc import Mapping
from typing import Any

from paceline.environments import AgentTurn, Observation

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


MOST_TO_GUESS = 20


class Guess:
    """`guess`, `guess:N`: a number from 1 to N to guess, 20 without N; or what a row of the dataset `guess` says.

    | the last number of a turn | the observation                           | reward of the turn |
    |---------------------------|-------------------------------------------|--------------------|
    | is the secret one         | `right`; the episode is done              | 1                  |
    | is below it               | `higher`                                  | 0                  |
    | is above it               | `lower`                                   | 0                  |
    | there is none             | `Say a number from 1 to N.`               | 0                  |

    The episode's reward is 1 if the number was found, else 0. The secret follows from the episode's seed. Where the row
    has the columns `low` and `high`, the secret is its answer, and its prompt says the rules.
    """

    def __init__(self, most: int = MOST_TO_GUESS) -> None:
        self._low, self._high = 1, most
        self._secret = 0
        self._is_found = False

    def begin(self, task: Mapping[str, Any], seed: int) -> str | None:
        """Start a game; returns its rules, None where the prompt has them.

        Raises:
            ValueError: the row's answer is not a whole number.
        """
        if "low" in task and "high" in task:
            self._low, self._high, self._secret = int(task["low"]), int(task["high"]), int(task["answer"])
            return None
        self._secret = random.Random(seed).randint(self._low, self._high)
        return behind_prompt(task, f"Guess a number from {self._low} to {self._high}.")

    def observe(self, turn: AgentTurn) -> Observation:
        """Observe a guess, as the table above says."""
        guess = last_number(turn.content)
        if guess == self._secret:
            self._is_found = True
            return said("right", reward=1.0, done=True)
        if guess is None:
            return said(f"Say a number from {self._low} to {self._high}.")
        return said("higher" if guess < self._secret else "lower")

    def close(self) -> float:
        """End the game; returns 1 if the number was found, else 0."""
        return float(self._is_found)


MOST_STONES, LEAST_STONES = 15, 5
MOST_TAKEN = 3
MOST_WRONG = 2  # Turns without a move that lose the game


class Nim:
    """`nim`, `nim:N`: a heap of at most N stones (15); two players take 1 to 3 in turn, and who takes the last wins.

    The model begins, and can always win: by leaving a multiple of four each time. The heap has at least five stones.
    The opponent takes the rest where it can, else 1 to 3 by chance. Heap and chance follow from the episode's seed.

    | the last number of a turn       | the observation                                       | reward of the turn |
    |---------------------------------|-------------------------------------------------------|--------------------|
    | takes the last stone            | `You win.`; the episode is done                       | 1                  |
    | is a move                       | `I take 2. 5 left.`                                   | 0                  |
    | lets the opponent take the rest | `I take 2 and win.`; the episode is done              | 0                  |
    | is no move, for the first time  | `Take 1 to 3 of 5 stones.`                            | 0                  |
    | is no move, for the second time | `No move: I win.`; the episode is done                | 0                  |

    The episode's reward is 1 for a win, else 0.
    """

    def __init__(self, most: int = MOST_STONES) -> None:
        self._most = most
        self._left = self._wrong = 0
        self._chance = random.Random()
        self._has_won = False

    def begin(self, task: Mapping[str, Any], seed: int) -> str:
        """Start a game; returns its rules."""
        self._chance = random.Random(seed)
        heaps = [heap for heap in range(LEAST_STONES, self._most + 1) if heap % (MOST_TAKEN + 1)]
        self._left = self._chance.choice(heaps)
        return behind_prompt(task, f"{self._left} stones. Take 1 to {MOST_TAKEN}; the last one wins.")

    def observe(self, turn: AgentTurn) -> Observation:
        """Observe a move, as the table above says."""
        most = min(MOST_TAKEN, self._left)
        taken = last_number(turn.content)
        if taken is None or not 1 <= taken <= most:
            self._wrong += 1
            if self._wrong == MOST_WRONG:
                return said("No move: I win.", done=True)
            return said(f"Take 1 to {most} of {self._left} stones.")
        self._left -= taken
        if not self._left:
            self._has_won = True
            return said("You win.", reward=1.0, done=True)
        taken = self._left if self._left <= MOST_TAKEN else self._chance.randint(1, MOST_TAKEN)
        self._left -= taken
        if not self._left:
            return said(f"I take {taken} and win.", done=True)
        return said(f"I take {taken}. {self._left} left.")

    def close(self) -> float:
        """End the game; returns 1 for a win, else 0."""
        return float(self._has_won)
