"""What a run's conversations have: environments, tokens between turns, limits, and the keys of random numbers."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.chat.messages import row_tools
from paceline.chat.turns import TurnTokens
from paceline.engines import Engine, sample_key
from paceline.environments import EnvironmentSpec
from paceline.environments.hosting import Hosts
from paceline.errors import DataError
from paceline.types import EpisodeEnd, Task, Trajectory

ENVIRONMENT = "environment"
"""Column that chooses among several environments."""
Drawn = Sequence[tuple[Task, int]]
"""Tasks, each with how often it came before, so that it draws anew."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completed:
    """A task as its environment began it, with its trajectories."""

    task: Task
    trajectories: tuple[Trajectory, ...]
    shown_tasks: tuple[Task, ...] = ()
    """The task of each trajectory as reward functions see it, where it began in its own way or has columns of its own;
    empty: `task`."""
    environments: tuple[object, ...] = ()
    """Environment of each trajectory, ended but alive; None where it had none in this process. Empty: none had one."""

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The task of each trajectory, as reward functions see it."""
        return self.shown_tasks or (self.task,) * len(self.trajectories)


class Completer(Protocol):
    """A function of the user's own that completes tasks in the place of the engine."""

    def __call__(self, engine: Engine, drawn: Drawn, *, num_generations: int, purpose: str) -> list[Completed]:
        """Complete each task `num_generations` times, to train on (`train`) or to measure (`eval`)."""


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
    episode_seconds: float
    """Wall seconds of all observations of an episode; `Hosts` has those of one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversations:
    """How a run's conversations are held."""

    specs: Mapping[str, EnvironmentSpec]
    """Environments by the name that rows call them by."""
    tokens: Mapping[str, TurnTokens]
    """Tokens between turns, by the environment's own name: its tools are in the prompt."""
    hosts: Hosts
    limits: EpisodeLimits
    in_rounds: bool = False
    """Sample the next turns of all episodes together once every environment has answered: slower, and no bit of a
    logprob depends on when an observation comes."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the environments; one that rows call by several names has one of its own."""
        return tuple(dict.fromkeys(spec.name for spec in self.specs.values()))

    def spec_of(self, columns: Mapping[str, object]) -> EnvironmentSpec | None:
        """Return the environment of a row, the only one whatever its columns say; None: it has one turn.

        Raises:
            DataError: the row names an environment that the run has not.
        """
        if len(self.specs) == 1:
            return next(iter(self.specs.values()))
        name = self._named(columns)
        return None if name is None else self.specs[name]

    def tools_of(self, columns: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
        """Return the JSON schemas of a dataset's row.

        Raises:
            DataError: the row names an environment that the run has not, also where there is only one.
        """
        self._named(columns)
        spec = self.spec_of(columns)
        return row_tools(columns) if spec is None else spec.tools

    def _named(self, columns: Mapping[str, object]) -> str | None:
        name = columns.get(ENVIRONMENT)
        if name is None or name in self.specs:
            return None if name is None else str(name)
        raise DataError(
            f"column {ENVIRONMENT!r} must name an environment of --environment ({', '.join(self.specs)}), got {name!r}",
            remedies=[
                "correct the row",
                "rename the column if it means something else"
                if len(self.specs) == 1
                else "leave the cell empty (null) for a completion of one turn",
            ],
        )

    def check(self, tasks: Sequence[Task]) -> None:
        """Refuse rows of conversations whose prompt is plain text (DataError): a conversation goes on from messages."""
        refuse_plain_text(
            (task for task in tasks if self.spec_of(task.columns) is not None),
            "(--environment) goes on from messages; make it a list of messages, or rename its column to `question`",
        )

    def check_choice(self, tasks: Sequence[Task]) -> None:
        """Refuse tasks of which none chooses one of several environments (DataError): there would be one turn."""
        if any(self.spec_of(task.columns) is not None for task in tasks):
            return
        raise DataError(
            f"column {ENVIRONMENT!r} of a row chooses among the environments of --environment "
            f"({', '.join(self.specs)}), and no row of the dataset has one; add the column, or give one environment"
        )

    def describe(self) -> list[str]:
        """Say of each environment what it is, how the model is shown its tools, and what the chat template fails at."""
        lines, by_name = list[str](), {spec.name: spec for spec in self.specs.values()}
        for name, spec in by_name.items():
            tokens, facts = self.tokens[name], [f"{key}: {value}" for key, value in spec.settings.items()]
            if spec.tools:
                shown = (
                    "by the chat template" if tokens.shows_tools else "in plain text, as the chat template has no form"
                )
                facts += [f"calls are read as {tokens.call_format}", f"tools are shown {shown}"]
            facts += [f"the chat template's {key} is held at {value}" for key, value in tokens.pinned.items()]
            if tokens.problem is not None:
                then = "rendered anew where that matters" if tokens.branches else "continued all the same"
                facts.append(
                    f"earlier turns may not stay as they were sampled, {tokens.problem}: it is {then} (--history)"
                )
            if facts:
                lines.append(f"environment {name!r}: {'; '.join(facts)}")
        return lines


def refuse_plain_text(tasks: Iterable[Task], rule: str) -> None:
    """Refuse the first task whose prompt is plain text (DataError); `rule` says what a conversation needs instead."""
    for task in tasks:
        if task.messages is None:
            raise DataError(f"row {task.task_id}: its prompt is plain text, and a conversation {rule}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Draws:
    """Keys of a batch's random numbers, beside the task."""

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


ENDS: Mapping[EpisodeEnd, tuple[str, str]] = {
    "length": ("ended at --max-completion-length {length}", "raise --max-completion-length"),
    "max_turns": ("ended at --max-turns {turns}", "raise --max-turns"),
    "done": ("ended by themselves", "let the environment give a reward at its end"),
    "failed": ("failed", "correct the environment"),
    "timed_out": ("took too long", "raise --environment-timeout"),
}
"""How conversations without a reward ended, in words, and what helps."""


def ends_without_reward(
    trajectories: Sequence[Trajectory], *, max_completion_length: int, max_turns: int | None
) -> tuple[str, list[str]] | None:
    """Count how conversations ended of which none has a reward; returns a sentence and remedies, the first for most.

    None: there is no conversation among them.
    """
    ends = Counter(trajectory.end for trajectory in trajectories if trajectory.end is not None)
    if not ends:
        return None
    limits = {"length": max_completion_length, "turns": max_turns}
    parts = [f"{count} {ENDS[end][0].format(**limits)}" for end, count in ends.most_common()]
    return f"of {ends.total()} conversations {', '.join(parts)}", [ENDS[end][1] for end, _ in ends.most_common()]
