"""`guess`, `guess:N`: a number from 1 to N to guess, 20 without N.

| the last number of a turn | the answer                                | reward of the turn |
|---------------------------|-------------------------------------------|--------------------|
| is the secret one         | `right`; the episode is done              | 1                  |
| is below it               | `higher`                                  | 0                  |
| is above it               | `lower`                                   | 0                  |
| there is none             | `Say a number from 1 to N.`               | 0                  |

The episode's reward is 1 if the number was found, else 0. The secret follows from the episode's seed.
"""

import random
from collections.abc import Mapping
from typing import Any

from paceline.environments import AgentTurn, Observation
from paceline.environments.builtin.games import behind_prompt, last_number

DEFAULT_MOST = 20


class Guess:
    """`Environment` of one game."""

    def __init__(self, most: int = DEFAULT_MOST) -> None:
        self._most = most
        self._secret = 0
        self._is_found = False

    def begin(self, task: Mapping[str, Any], seed: int) -> str:
        """Start a game; returns its rules."""
        self._secret = random.Random(seed).randint(1, self._most)
        return behind_prompt(task, f"Guess a number from 1 to {self._most}.")

    def answer(self, turn: AgentTurn) -> Observation:
        """Answer a guess as the table at the top of this file says."""
        guess = last_number(turn.content)
        if guess == self._secret:
            self._is_found = True
            return Observation(messages=({"role": "user", "content": "right"},), reward=1.0, done=True)
        if guess is None:
            said = f"Say a number from 1 to {self._most}."
        else:
            said = "higher" if guess < self._secret else "lower"
        return Observation(messages=({"role": "user", "content": said},), reward=0.0)

    def close(self) -> float:
        """End the game; returns 1 if the number was found, else 0."""
        return float(self._is_found)
