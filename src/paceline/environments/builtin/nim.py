"""`nim`, `nim:N`: a heap of at most N stones (15); two players take 1 to 3 in turn, and who takes the last wins.

The model begins, and can always win: by leaving a multiple of four each time. The heap has at least five stones. The
opponent takes the rest where it can, else 1 to 3 by chance. Heap and chance follow from the episode's seed.

| the last number of a turn       | the observation                                           | reward of the turn |
|---------------------------------|-----------------------------------------------------------|--------------------|
| takes the last stone            | `You win.`; the episode is done                           | 1                  |
| is a move                       | `I take 2. 5 left.`                                       | 0                  |
| is a move that lets the opponent take the rest | `I take 2 and win.`; the episode is done   | 0                  |
| is no move, for the first time  | `Take 1 to 3 of 5 stones.`                                | 0                  |
| is no move, for the second time | `No move: I win.`; the episode is done                    | 0                  |

The episode's reward is 1 for a win, else 0.
"""

import random
from collections.abc import Mapping
from typing import Any

from paceline.environments import AgentTurn, Observation
from paceline.environments.builtin.games import behind_prompt, last_number, said

DEFAULT_MOST, LEAST = 15, 5
MOST_TAKEN = 3
MOST_WRONG = 2  # Turns without a move that lose the game


class Nim:
    """`Environment` of one game."""

    def __init__(self, most: int = DEFAULT_MOST) -> None:
        self._most = most
        self._left = self._wrong = 0
        self._chance = random.Random()
        self._has_won = False

    def begin(self, task: Mapping[str, Any], seed: int) -> str:
        """Start a game; returns its rules."""
        self._chance = random.Random(seed)
        heaps = [heap for heap in range(LEAST, self._most + 1) if heap % (MOST_TAKEN + 1)]
        self._left = self._chance.choice(heaps)
        return behind_prompt(task, f"{self._left} stones. Take 1 to {MOST_TAKEN}; the last one wins.")

    def observe(self, turn: AgentTurn) -> Observation:
        """Observe a move, as the table at the top of this file says."""
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
