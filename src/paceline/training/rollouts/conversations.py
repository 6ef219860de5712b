"""What conversations are held by: environments, tokens between turns, limits, and what random numbers hang on."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.data.extraction.calls import CallFormat
from paceline.engines import sample_key
from paceline.environments import EnvironmentSpec
from paceline.environments.hosting import Hosts
from paceline.environments.tokens import TurnTokens
from paceline.types import Task

ENVIRONMENT = "environment"
"""Column that chooses among several environments."""
Drawn = Sequence[tuple[Task, int]]
"""Tasks, each with how often it came before, so that it draws anew."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeLimits:
    """Limits of one episode; `Sampling.max_completion_length` bounds the tokens of all its turns together."""

    turns: int | None
    """Turns of the model, at most."""
    turn_tokens: int | None
    """Tokens sampled in one turn, at most."""
    message_tokens: int | None
    """Tokens of one message of the environment, at most."""
    prompt_tokens: int
    """Tokens of the prompt with what the environment adds to it, at most."""
    step_seconds: float
    """Wall seconds of one answer of the environment."""
    episode_seconds: float
    """Wall seconds of all answers of an episode."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversations:
    """How a run's conversations are held."""

    specs: Mapping[str, EnvironmentSpec]
    """Environments by name."""
    tokens: Mapping[str, TurnTokens]
    """Tokens between turns, by environment: its tools are in the prompt."""
    call_format: CallFormat
    """How the model writes tool calls, by its chat template."""
    hosts: Hosts
    limits: EpisodeLimits

    def spec_of(self, task: Task) -> EnvironmentSpec | None:
        """Return the environment of a task; None: it has one turn."""
        if len(self.specs) == 1:
            return next(iter(self.specs.values()))
        name = task.columns.get(ENVIRONMENT)
        return None if name is None else self.specs[str(name)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Draws:
    """What the random numbers of a batch are keyed by, beside the task."""

    seed: int
    purpose: str
    """`train` or `eval`."""
    num_generations: int

    def key(self, task: Task, occurrence: int, sample: int, turn: int = 0) -> int:
        """Key of one turn of one completion."""
        return sample_key(self.seed, self.purpose, task.task_id, occurrence, sample, turn)

    def environment_seed(self, task: Task, occurrence: int) -> int:
        """Seed of the environments of a prompt's group, in [0, 2^31): some libraries take no more."""
        identity = repr((self.seed, self.purpose, task.task_id, occurrence, "environment")).encode()
        return int.from_bytes(hashlib.blake2b(identity, digest_size=4).digest(), "little") >> 1
