"""Options of conversations: the environments, and the limits of an episode."""

import re
from dataclasses import dataclass
from typing import Literal

from paceline.config.rules import require

NAMED_ENVIRONMENT = re.compile(r"(?P<name>[A-Za-z_][\w-]*)=(?P<address>.*)", re.DOTALL)
"""An environment with a name of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentConfig:
    """Conversations of several turns with tools or environments."""

    environment: tuple[str, ...] = ()
    """Tools and environments of a conversation: `calculator`, `python`, `search:FOLDER`, `guess`, `nim`, `mcp:COMMAND`,
    `harness:PROGRAM`, `reasoning_gym:NAME`, `gymnasium:ID`, `textarena:ID`, `skyrl_gym:ID`, `verifiers:ID`,
    `openenv:URL`, or `module:NAME` or `file.py:NAME` of a tool function or an environment class. Tools are put
    together; several environments are chosen by the column `environment`, and `NAME=ADDRESS` names one. Empty: one
    turn."""
    max_turns: int | None = None
    """Turns of an episode, at most; None: as many as `max_completion_length`, which all turns share, has room for."""
    max_turn_length: int | None = None
    """Tokens that the model may sample in one turn; a turn that is cut there is answered as any other. None: what is
    left of `max_completion_length`."""
    max_observation_length: int | None = None
    """Tokens of one message of an environment; a longer one is cut with a mark. None: what is left of
    `max_completion_length`, else the episode ends."""
    environment_timeout: tuple[float, ...] = (60.0, 600.0)
    """Seconds that an environment may take for one answer, and for all of an episode; then the episode has failed."""
    turn_credit: float | None = None
    """Discount per turn: each turn is credited with its own reward and the discounted ones of later turns, where the
    environment rewards turns. None: all turns share the advantage of the episode."""
    history: Literal["auto", "append", "branch"] = "auto"
    """Context of later turns, where a chat template rewrites earlier ones (drops their thinking, say): `append` keeps
    what was sampled, `branch` reads what the template writes, in a training sequence of its own; auto: `append` where
    the template keeps earlier turns, else `branch`."""

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_turn_length", "max_observation_length"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "be at least 1")
        seconds, rule = self.environment_timeout, "be two numbers of seconds above 0, the second not below the first"
        require(len(seconds) == 2 and 0 < seconds[0] <= seconds[1], "environment_timeout", seconds, rule)
        right = self.turn_credit is None or 0 <= self.turn_credit <= 1
        require(right, "turn_credit", self.turn_credit, "lie in [0, 1]")
        for name in EnvironmentConfig.__dataclass_fields__:
            value, default = getattr(self, name), EnvironmentConfig.__dataclass_fields__[name].default
            right = bool(self.environment) or value == default
            require(right, name, value, f"be {default} without --environment", "there is one turn then")
