"""`guess`, `guess:N`: a number from 1 to N to guess, 20 without N; or what a row of the dataset `guess` says.

| the last number of a turn | the observation                           | reward of the turn |
|---------------------------|-------------------------------------------|--------------------|
| is the secret one         | `right`; the episode is done              | 1                  |
| is below it               | `higher`                                  | 0                  |
| is above it               | `lower`                                   | 0                  |
| there is none             | `Say a number from 1 to N.`               | 0                  |

The episode's reward is 1 if the number was found, else 0. The secret follows from the episode's seed. Where the row has
the columns `low` and `high`, the secret is its answer, and its prompt says the rules.
"""

import random
from collections.abc import Mapping
from typing import Any

from paceline.environments import AgentTurn, Observation
from paceline.environments.builtin.games import behind_prompt, last_number, said

DEFAULT_MOST = 20


class Guess:
    """`Environment` of one game."""

    def __init__(self, most: int = DEFAULT_MOST) -> None:
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
        """Observe a guess, as the table at the top of this file says."""
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
