"""Environments of OpenEnv for tests, and the applications that serve them."""

import itertools
import random
from enum import StrEnum

from fastmcp import FastMCP
from openenv.core.env_server import Action, Environment, MCPEnvironment, Observation, State, create_app
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from pydantic import Field


class Guess(Action):
    number: int = Field(ge=1, le=20, description="a guess from 1 to 20")
    why: str = ""


class Hint(Observation):
    hint: str
    left: int | None = None


class Guessing(Environment):
    """A number from 1 to `most`, by the seed; the board is gone where 13 is guessed."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State()
        self.secret = 0

    def reset(self, seed=None, episode_id=None, most=20):
        self.secret = random.Random(seed).randint(1, most)
        return Hint(
            hint=f"Guess a number from 1 to {most}; the sum of its digits is {sum(map(int, str(self.secret)))}."
        )

    def step(self, action, timeout_s=None):
        if action.number == 13:
            raise RuntimeError("the board is gone")
        self._state.step_count += 1
        if action.number == self.secret:
            return Hint(hint="right", reward=1.0, done=True)
        hint = "higher" if action.number < self.secret else "lower"
        return Hint(hint=hint, left=5 - self._state.step_count, reward=-0.125, done=self._state.step_count == 5)

    @property
    def state(self):
        return self._state


class Forgetful(Guessing):
    """A game that no seed decides: each begins with another number, as drawn ones would be equal now and then."""

    games = itertools.count(1)

    def reset(self, seed=None, episode_id=None):
        return super().reset(seed=seed, most=next(self.games))


class Way(StrEnum):
    LEFT = "left"
    RIGHT = "right"


class Move(Action):
    way: Way


class Place(Observation):
    place: int


class Line(Guessing):
    """A walk from 0 to 2."""

    def reset(self, seed=None, episode_id=None):
        self.place = 0
        return Place(place=0)

    def step(self, action, timeout_s=None):
        self.place += 1 if action.way is Way.RIGHT else -1
        return Place(place=self.place, reward=float(self.place == 2), done=self.place == 2)


class Counter(MCPEnvironment):
    """Tools that count to three."""

    def __init__(self):
        server = FastMCP("counter")
        self.count = 0

        @server.tool
        def add(number: int) -> int:
            """Add to the count.

            Args:
                number: How much.
            """
            self.count += number
            return self.count

        @server.tool
        def break_it() -> str:
            """Fail."""
            raise ValueError("it is broken")

        super().__init__(server)

    def reset(self, seed=None, episode_id=None):
        self.count = 0
        return Observation(metadata={"status": "ready"})

    async def step_async(self, action, timeout_s=None, **kwargs):
        observation = await super().step_async(action, timeout_s=timeout_s, **kwargs)
        if isinstance(observation, CallToolObservation):
            observation.reward, observation.done = float(self.count == 3), self.count == 3
        return observation

    def _step_impl(self, action, timeout_s=None, **kwargs):
        return Observation()

    @property
    def state(self):
        return State()


guessing = create_app(Guessing, Guess, Hint, env_name="guessing")
forgetful = create_app(Forgetful, Guess, Hint, env_name="forgetful")
line = create_app(Line, Move, Place, env_name="line")


def counter():
    """Make the application of the tools."""
    return create_app(Counter, CallToolAction, CallToolObservation, env_name="counter")
