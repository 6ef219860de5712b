"""What can be measured on held-out tasks between two steps: how many are right, or what they earn."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from paceline.config.reading import is_code
from paceline.config.sections import Config
from paceline.engines import Engine
from paceline.episodes.conversations import Completer, Conversations
from paceline.rewards.function import RewardFunction
from paceline.rewards.selecting import stated_answer
from paceline.training.rollouts.records import rollout_metrics, rollout_records
from paceline.training.rollouts.rounds import RolloutBatch
from paceline.training.setup.samplers import training_rounds, training_sampler
from paceline.types import Task

COUNTED = (
    "reward_mean",
    "reward_std",
    "reward_std_within",
    "format_accuracy",
    "rewards",
    "completion_length_mean",
    "completion_length_max",
    "truncated_fraction",
    "groups_zero_deviation",
    "groups_no_reward",
    "rollouts_without_reward",
    "tokens_generated",
)
"""Metrics of a training step's rollouts that mean the same on held-out tasks."""


class EvalResult(Protocol):
    """What was found on one held-out set."""

    @property
    def name(self) -> str:
        """Name of the held-out set."""

    @property
    def step(self) -> int:
        """Steps that the weights had seen."""

    def record(self) -> dict[str, Any]:
        """The object that goes to `evals.jsonl`."""

    def completion_records(self) -> list[dict[str, Any]]:
        """One object per completion, in the order of the tasks."""

    def describe(self) -> str:
        """One sentence for a person."""


class Evaluator(Protocol):
    """Measures one held-out set, always the same way."""

    def evaluate(self, engine: Engine, *, step: int) -> EvalResult:
        """Complete every task and grade the completions; raises what grading raises."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardEvaluator:
    """Measures the training rewards, drawn as in training, under keys of their own; no group is filtered."""

    config: Config
    name: str
    tasks: tuple[Task, ...]
    functions: Mapping[str, RewardFunction]
    generations: int
    conversations: Conversations | None = None
    """How conversations are held; None: every completion has one turn."""
    completer: Completer | None = None
    """What completes tasks in the place of the engine; None: the engine does."""

    def evaluate(self, engine: Engine, *, step: int) -> "RewardResult":
        """Complete every task `generations` times, and grade."""
        started, config = time.perf_counter(), self.config
        kind = "group" if is_code(config.advantage.advantage) else config.advantage.advantage  # it has no use here
        advantage = replace(
            config.advantage, advantage=kind, filter_range=None, filter_func=None, max_refills=0, oversampling=1.0
        )
        rounds = training_rounds(config, engine, self.functions, self.conversations, self.completer)
        rounds = replace(rounds, num_generations=self.generations, advantage=advantage, purpose="eval")
        sampler = replace(training_sampler(config, rounds, None), advantage=advantage)
        batch = sampler.sample(lambda count: [(task, 0) for task in self.tasks[:count]], len(self.tasks))
        seconds = time.perf_counter() - started
        parsed = tuple(
            stated_answer(self.functions, group.task, rollout.trajectory.text, rollout.trajectory.finish_reason)
            for group in batch.groups
            for rollout in group.rollouts
        )
        return RewardResult(name=self.name, step=step, batch=batch, parsed=parsed, seconds=seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardResult:
    """What the completions of one held-out set earned."""

    name: str
    step: int
    batch: RolloutBatch
    parsed: tuple[str | None, ...]
    """The answer that each completion states; None: it states none."""
    seconds: float

    def record(self) -> dict[str, Any]:
        """The object that goes to `evals.jsonl`."""
        metrics = rollout_metrics(self.batch)
        return {
            "set": self.name,
            "step": self.step,
            "n": len(self.batch.groups),
            "generations": len(self.batch.groups[0].rollouts),
            **{name: metrics[name] for name in COUNTED if name in metrics},
            "clock": {"seconds": self.seconds},
        }

    def completion_records(self) -> list[dict[str, Any]]:
        """One object per completion, in the order of the tasks."""
        records = rollout_records(self.batch.groups)
        return [
            {**record, "parsed": parsed, "format": formed}
            for record, parsed, formed in zip(records, self.parsed, self.batch.scores.formed, strict=True)
        ]

    def describe(self) -> str:
        """The mean reward, the set, and of how many tasks."""
        record = self.record()
        reward = "none" if record["reward_mean"] is None else f"{record['reward_mean']:.4f}"
        return (
            f"held-out reward after step {self.step}: {reward} "
            f"({self.name}, n = {record['n']} times {record['generations']}, {self.seconds:.1f} s)"
        )
