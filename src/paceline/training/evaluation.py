"""Held-out tasks measured: accuracy with its interval, or the rewards of training, and every completion behind it."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.chat.thinking import prefills_think, visible_text
from paceline.config.objective import AdvantageConfig
from paceline.config.sections import Config
from paceline.data.answers import final_answer
from paceline.engines import Engine, Sampling
from paceline.episodes.conversations import Completer, Conversations, ends_without_reward
from paceline.errors import DataError, PacelineError, TrainingError
from paceline.metrics.comparisons import detectable_difference
from paceline.metrics.statistics import Interval, Vote, avg_at_k, maj_at_k, mean_interval, pass_at_k, wilson
from paceline.reports.format import count, percent_interval, sample_size
from paceline.reports.page.outcome import is_right_leniently
from paceline.rewards.function import RIGHT, BuiltIn, RewardFunction, has_format, right_of, stated_answer
from paceline.rewards.judges.settings import spending_metrics
from paceline.rewards.scoring.scores import check_failure_rate
from paceline.training.rollouts.records import episode_record, image_record, rollout_metrics, rollout_records
from paceline.training.rollouts.rounds import EngineSampler, RolloutBatch
from paceline.training.setup.samplers import training_sampler
from paceline.types import RolloutGroup, Task, Trajectory

COUNTED = (
    *("reward_mean", "reward_std", "reward_std_within", "format_accuracy", "rewards", "completion_length_mean"),
    *("completion_length_max", "truncated_fraction", "groups_zero_deviation", "groups_no_reward"),
    *("rollouts_without_reward", "tokens_generated"),
)
"""Metrics of a training step's rollouts that mean the same on held-out tasks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluator:
    """Measures one held-out set, always the same way: how many answers are right, or which rewards they earn."""

    name: str
    """Name of the set, for example `arithmetic:test`."""
    tasks: tuple[Task, ...]
    notes: tuple[str, ...] = ()
    """Sentences for the user before any number: rows left out, how programs are isolated."""
    functions: Mapping[str, RewardFunction]
    """The one reward function that says what is right, under its name, or none where environments say it by their
    rewards; with `training`, every reward function of training."""
    training: Config | None = None
    """Options that weigh the training rewards, without a filter of groups; None: right answers are counted."""
    sampling: Sampling
    generations: int
    max_failure_rate: float
    reward_timeout: float
    """Seconds that one call of the reward function may take."""
    seed: int
    format_functions: Mapping[str, RewardFunction] = field(default_factory=dict)
    """Reward functions of training that ask for a format; without any, `functions` are asked."""
    conversations: Conversations | None = None
    """Conversations with environments; None: every completion has one turn."""
    completer: Completer | None = None
    """What completes tasks in place of the engine; None: the engine does."""

    @property
    def detectable(self) -> str:
        """One sentence, before anything is measured: the smallest difference that so many tasks can show."""
        effect, n = detectable_difference(len(self.tasks)), len(self.tasks)
        if effect is None:
            return f"{self.name}: {n} tasks are too few to tell any difference between two models; take more"
        return f"{self.name}: with {n} held-out tasks, differences below about {100 * effect:.0f} points are noise"

    def evaluate(self, engine: Engine, *, step: int) -> "EvalResult":
        """Complete every task `generations` times and grade.

        Raises:
            TrainingError: a reward function failed on more than `max_failure_rate` of the completions, or no
                conversation got a reward.
            DataError: no task could be graded.
        """
        started = time.perf_counter()
        rounds = EngineSampler(
            engine=engine,
            functions=self.functions,
            sampling=self.sampling,
            num_generations=self.generations,
            advantage=AdvantageConfig() if self.training is None else self.training.advantage,
            reward_timeout=self.reward_timeout,
            seed=self.seed,
            purpose="eval",
            conversations=self.conversations,
            completer=self.completer,
        )
        if self.training is None:
            return self._accuracy(rounds.sample([(task, 0) for task in self.tasks]), step, started)
        sampler = training_sampler(self.training, rounds, None)
        batch = sampler.sample(lambda count: [(task, 0) for task in self.tasks[:count]], len(self.tasks))
        seconds = time.perf_counter() - started
        parsed = tuple(
            self._stated(group.task, rollout.trajectory) for group in batch.groups for rollout in group.rollouts
        )
        return RewardResult(name=self.name, step=step, batch=batch, parsed=parsed, seconds=seconds)

    def _accuracy(self, sampled: RolloutBatch, step: int, started: float) -> "AccuracyResult":
        scores, right = sampled.scores, max([right_of(function) for function in self.functions.values()], default=RIGHT)
        outcomes = tuple(self._outcome(group, right) for group in sampled.groups)
        result = AccuracyResult(
            name=self.name,
            step=step,
            outcomes=outcomes,
            failed_calls=sum(tally.failed_calls for tally in scores.tallies.values()),
            counts=next((tally.counts for tally in scores.tallies.values() if tally.counts), {}),
            reads_answers=bool(self.functions),
            mark=next((function.mark for function in self.functions.values() if isinstance(function, BuiltIn)), ""),
            seconds=time.perf_counter() - started,
        )
        try:
            check_failure_rate(scores, limit=self.max_failure_rate)
            self._check_graded(result)
        except PacelineError as error:
            error.kept = result
            raise
        return result

    def _outcome(self, group: RolloutGroup, right: float) -> "TaskResult":
        trajectories = tuple(rollout.trajectory for rollout in group.rollouts)
        rewards = [trajectory.reward for trajectory in trajectories]
        notes = [trajectory.failure for trajectory in trajectories]
        for name in self.functions:  # a reward function counts in place of what environments say
            rewards = [rollout.rewards[name] for rollout in group.rollouts]
            notes = [rollout.notes.get(name) for rollout in group.rollouts]
        asking = self.format_functions or self.functions
        return TaskResult(
            task=group.task,
            trajectories=trajectories,
            rewards=tuple(rewards),
            notes=tuple(notes),
            right=right,
            parsed=tuple(self._stated(group.task, trajectory) for trajectory in trajectories),
            formed=tuple(has_format(asking, group.task, trajectory.text) for trajectory in trajectories),
        )

    def _stated(self, task: Task, trajectory: Trajectory) -> str | None:
        return stated_answer(self.functions, task, trajectory.text, trajectory.finish_reason)

    def _check_graded(self, result: "AccuracyResult") -> None:
        if any(outcome.graded for outcome in result.outcomes):
            return
        ends = ends_without_reward(
            [trajectory for outcome in result.outcomes for trajectory in outcome.trajectories],
            max_completion_length=self.sampling.max_completion_length,
            max_turns=None if self.conversations is None else self.conversations.limits.turns,
        )
        if ends is None or self.functions:
            name = next(iter(self.functions), "its environment")
            raise DataError(f"{self.name}: {name} could grade no task; are there gold answers? see --answer-column")
        how, remedies = ends
        raise TrainingError(f"{self.name}: no conversation got a reward: {how}", remedies=remedies)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskResult:
    """Completions of one task with their verdicts."""

    task: Task
    trajectories: tuple[Trajectory, ...]
    rewards: tuple[float | None, ...]
    """None: not graded; such a completion counts neither as right nor as wrong."""
    notes: tuple[str | None, ...]
    """Note of the grader on each score, or why it failed."""
    right: float
    """A reward of at least this is a right answer."""
    parsed: tuple[str | None, ...]
    """The answer that each completion states, as the grader reads it; None: it states none."""
    formed: tuple[bool | None, ...]
    """True for each completion in the requested format; None where no format was requested."""

    @property
    def graded(self) -> int:
        """Completions that were graded."""
        return sum(reward is not None for reward in self.rewards)

    @property
    def correct(self) -> int:
        """Completions that were right."""
        return sum(reward is not None and reward >= self.right for reward in self.rewards)

    @property
    def votes(self) -> tuple[Vote, ...]:
        """The final answer of each graded completion, outside its thinking, and whether it was right."""
        prefilled, pairs = prefills_think(self.task.prompt), zip(self.trajectories, self.rewards, strict=True)
        graded = [(trajectory.text, reward >= self.right) for trajectory, reward in pairs if reward is not None]
        return tuple((final_answer(visible_text(text, prefilled=prefilled)), is_right) for text, is_right in graded)


@dataclass(frozen=True, kw_only=True, slots=True)
class AccuracyResult:
    """One measurement of one set."""

    name: str
    step: int
    outcomes: tuple[TaskResult, ...]
    failed_calls: int
    """Calls of the grader that raised or took too long, those among them that another call made good."""
    seconds: float
    counts: Mapping[str, float] = field(default_factory=dict)
    """Costs of a judge; empty for any other grader."""
    reads_answers: bool
    """False where environments say what is right: a conversation need not state an answer."""
    mark: str = ""
    """How the grader wants answers marked, in words; empty for no mark."""

    @property
    def accuracy(self) -> Interval:
        """Wilson's interval for one completion per task; a normal one over tasks' shares for several."""
        graded = [outcome for outcome in self.outcomes if outcome.graded]
        if all(len(outcome.rewards) == 1 for outcome in graded):
            return wilson(sum(outcome.correct for outcome in graded), len(graded))
        return mean_interval([avg_at_k(outcome.correct, outcome.graded) for outcome in graded])

    def record(self) -> dict[str, object]:
        """The object that goes to `evals.jsonl`."""
        accuracy = self.accuracy
        trajectories = [trajectory for outcome in self.outcomes for trajectory in outcome.trajectories]
        graded = [outcome for outcome in self.outcomes if outcome.graded]
        generations = len(self.outcomes[0].rewards)
        record: dict[str, object] = {
            "set": self.name,
            "step": self.step,
            "n": len(graded),
            "tasks": len(self.outcomes),
            "correct": sum(outcome.correct for outcome in graded),
            "accuracy": accuracy.value,
            "ci_low": accuracy.low,
            "ci_high": accuracy.high,
            "generations": generations,
            "ungraded": sum(len(outcome.rewards) - outcome.graded for outcome in self.outcomes),
            "failed_calls": self.failed_calls,
            "completion_length_mean": sum(trajectory.num_sampled for trajectory in trajectories) / len(trajectories),
            "truncated_fraction": sum(trajectory.finish_reason == "length" for trajectory in trajectories)
            / len(trajectories),
        }
        turns = [len(trajectory.turns) for trajectory in trajectories if trajectory.environment is not None]
        if turns:
            record["turns_mean"] = sum(turns) / len(turns)
        formed = [has_form for outcome in self.outcomes for has_form in outcome.formed if has_form is not None]
        if formed:
            record["format_accuracy"] = sum(formed) / len(formed)
        if self.counts:
            record["judge"] = spending_metrics(self.counts)
        at_k = {f"{name}_at_{generations}": value for name, value in self.at_k().items()}
        return record | at_k | {"clock": {"seconds": self.seconds}}

    def at_k(self) -> dict[str, float]:
        """pass@k and maj@k of k completions per task; maj only where completions state answers, none for k = 1."""
        graded = [outcome for outcome in self.outcomes if outcome.graded]
        if len(self.outcomes[0].rewards) == 1:
            return {}
        shares = {"pass": math.fsum(pass_at_k(o.correct, o.graded, o.graded) for o in graded) / len(graded)}
        votes = [outcome.votes for outcome in graded]
        if any(answer is not None for task in votes for answer, _ in task):
            shares["maj"] = math.fsum(map(maj_at_k, votes)) / len(graded)
        return shares

    def shown(self) -> str:
        """Format the accuracy with its interval, and pass@k and maj@k of several completions."""
        k = len(self.outcomes[0].rewards)
        others = [f"{name}@{k} {100 * value:.1f} %" for name, value in self.at_k().items()]
        return ", ".join([f"{percent_interval(self.accuracy)}{f' (avg@{k})' if k > 1 else ''}", *others])

    def describe(self) -> str:
        """Describe the accuracy with its interval, the set and the number of tasks."""
        return (
            f"held-out accuracy after step {self.step}: {self.shown()} "
            f"({self.name}, {self.sample_size()}, {self.seconds:.1f} s)"
        )

    def sample_size(self) -> str:
        """Tasks that were graded, and how many of them all failed."""
        return sample_size(sum(outcome.graded > 0 for outcome in self.outcomes), len(self.outcomes))

    def verdicts(self) -> dict[str, int]:
        """Numbers of completions: right, wrong and without an answer are all that were graded, each of them once.

        Any of them may have been cut; `right_leniently` counts those among the others that state the gold answer. Where
        no answers are read, all that were not right are wrong.
        """
        records = self.completion_records()
        graded = [record for record in records if record["correct"] is not None]
        missed = [record for record in graded if not record["correct"]]
        stated = missed if self.reads_answers else []
        silent = sum(record["parsed"] is None for record in stated)
        return {
            "completions": len(records),
            "right": len(graded) - len(missed),
            "wrong_answer": len(missed) - silent,
            "no_answer": silent,
            "right_leniently": sum(
                isinstance(record["answer"], str) and is_right_leniently(record) for record in stated
            ),
            "cut": sum(record["finish_reason"] == "length" for record in records),
            "ungraded": len(records) - len(graded),
        }

    def reasons(self) -> str:
        """One sentence on why the accuracy is what it is."""
        verdicts = self.verdicts()
        parts = [f"{verdicts['right']:,} right"]
        if self.reads_answers:
            parts.append(f"{verdicts['wrong_answer']:,} with a wrong answer")
            parts.append(f"{verdicts['no_answer']:,} without a marked answer")
        else:
            parts.append(f"{verdicts['wrong_answer']:,} not right")
        if verdicts["ungraded"]:
            parts.append(f"{verdicts['ungraded']:,} not graded")
        lenient = (
            f"; {verdicts['right_leniently']:,} more would be right if read leniently" if self.reads_answers else ""
        )
        cut = f"{verdicts['cut']:,} cut at --max-completion-length"
        sentence = f"of {count(verdicts['completions'], 'completion')}: {', '.join(parts)}{lenient}; {cut}"
        if not self.mark or verdicts["no_answer"] < verdicts["completions"] - verdicts["ungraded"]:
            return sentence
        return (
            f"{sentence}; the model does not write {self.mark}: say so in the system message, show it an example, or "
            "grade by accuracy(plain=true)"
        )

    def completion_records(self) -> list[dict[str, object]]:
        """One object per completion, in the order of the tasks."""
        return [
            {
                "task_id": outcome.task.task_id,
                "prompt": outcome.task.prompt,
                "answer": outcome.task.answer,
                "completion": trajectory.text,
                "reward": reward,
                "correct": None if reward is None else reward >= outcome.right,
                "note": note,
                "parsed": parsed,
                "format": formed,
                "completion_tokens": trajectory.num_sampled,
                "finish_reason": trajectory.finish_reason,
                **image_record(outcome.task),
                **({} if self.reads_answers else {"judged_by": "environment"}),
                **({} if trajectory.environment is None else {"episode": episode_record(trajectory, outcome.task)}),
            }
            for outcome in self.outcomes
            for trajectory, reward, note, parsed, formed in zip(
                outcome.trajectories, outcome.rewards, outcome.notes, outcome.parsed, outcome.formed, strict=True
            )
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardResult:
    """Rewards of the completions of one held-out set."""

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
        """Describe the mean reward, the set and the number of tasks."""
        record = self.record()
        reward = "none" if record["reward_mean"] is None else f"{record['reward_mean']:.4f}"
        return (
            f"held-out reward after step {self.step}: {reward} "
            f"({self.name}, n = {record['n']} times {record['generations']}, {self.seconds:.1f} s)"
        )


EvalResult = AccuracyResult | RewardResult
