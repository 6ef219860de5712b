"""Accuracy of a model on a named set of held-out tasks, with its interval and every completion behind it."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline.chat.thinking import prefills_think, visible_text
from paceline.data.extraction.answers import final_answer
from paceline.engines import Engine, Sampling
from paceline.episodes.conversations import Conversations, Draws, ends_without_reward
from paceline.episodes.driver import complete
from paceline.errors import DataError, PacelineError, TrainingError
from paceline.metrics.comparisons import detectable_difference
from paceline.metrics.intervals import Interval, mean_interval, wilson
from paceline.metrics.statistics import Vote, avg_at_k, maj_at_k, pass_at_k
from paceline.reports.format import count, percent_interval, sample_size
from paceline.reports.page.outcome import is_right_leniently
from paceline.rewards.function import RIGHT, BuiltIn, RewardFunction, right_of
from paceline.rewards.judges.settings import spending_metrics
from paceline.rewards.scoring.calling import early_start
from paceline.rewards.scoring.scores import check_failure_rate
from paceline.rewards.selecting import has_format, stated_answer
from paceline.training.rollouts.records import episode_record
from paceline.training.rollouts.rounds import score_completed
from paceline.types import Task, Trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class AccuracyEvaluator:
    """Measures one set of held-out tasks, always the same way."""

    name: str
    """What the tasks are, for example `arithmetic:test`."""
    tasks: tuple[Task, ...]
    notes: tuple[str, ...] = ()
    """What a person should know of them before any number: rows left out, how programs are isolated."""
    function: Mapping[str, RewardFunction]
    """The one reward function that says what is right, under its name; empty: environments say it by their rewards."""
    sampling: Sampling
    generations: int
    max_failure_rate: float
    reward_timeout: float
    """Seconds that one call of the reward function may take."""
    seed: int
    asking: Mapping[str, RewardFunction] = field(default_factory=dict)
    """The reward functions of training that ask for a format; without any, that of `function` counts, if it asks."""
    conversations: Conversations | None = None
    """How conversations are held; None: every completion has one turn."""

    @property
    def reach(self) -> str:
        """One sentence, before anything is measured: how small a difference so many tasks can show."""
        found, n = detectable_difference(len(self.tasks)), len(self.tasks)
        if found is None:
            return f"{self.name}: {n} tasks are too few to tell any difference between two models; take more"
        return f"{self.name}: with {n} held-out tasks, differences below about {100 * found:.0f} points are noise"

    def evaluate(self, engine: Engine, *, step: int) -> "AccuracyResult":
        """Complete every task `generations` times and grade.

        Raises:
            TrainingError: the grader failed on more than `max_failure_rate` of the completions.
            DataError: no task could be graded.
        """
        started = time.perf_counter()
        drawn = [(task, 0) for task in self.tasks]
        draws = Draws(seed=self.seed, purpose="eval", num_generations=self.generations)
        early = early_start(self.function, self.tasks)
        completed = complete(engine, drawn, self.sampling, draws, self.conversations, early)
        scores = score_completed(self.function, completed, self.conversations, timeout=self.reward_timeout)
        trajectories = [trajectory for group in completed for trajectory in group.trajectories]
        values: Sequence[float | None] = [trajectory.reward for trajectory in trajectories]
        notes: Sequence[str | None] = [trajectory.failure for trajectory in trajectories]
        for name in self.function:  # in the place of what environments say
            values, notes = scores.values[name], scores.notes[name]
        right = max([right_of(function) for function in self.function.values()], default=RIGHT)
        parts = [slice(start, start + self.generations) for start in range(0, len(values), self.generations)]
        outcomes = tuple(
            TaskResult(
                task=group.task,
                trajectories=group.trajectories,
                rewards=tuple(values[part]),
                notes=tuple(notes[part]),
                right=right,
                parsed=tuple(
                    stated_answer(self.function, group.task, trajectory.text, trajectory.finish_reason)
                    for trajectory in group.trajectories
                ),
                formed=tuple(
                    has_format(self.asking or self.function, group.task, trajectory.text)
                    for trajectory in group.trajectories
                ),
            )
            for group, part in zip(completed, parts, strict=True)
        )
        result = AccuracyResult(
            name=self.name,
            step=step,
            outcomes=outcomes,
            failed_calls=sum(tally.failed_calls for tally in scores.tallies.values()),
            counts=next((tally.counts for tally in scores.tallies.values() if tally.counts), {}),
            reads_answers=bool(self.function),
            mark=next((one.mark for one in self.function.values() if isinstance(one, BuiltIn)), ""),
            seconds=time.perf_counter() - started,
        )
        try:
            check_failure_rate(scores, limit=self.max_failure_rate)
            self._check_graded(result)
        except PacelineError as error:
            error.kept = result
            raise
        return result

    def _check_graded(self, result: "AccuracyResult") -> None:
        if any(outcome.graded for outcome in result.outcomes):
            return
        ends = ends_without_reward(
            [trajectory for outcome in result.outcomes for trajectory in outcome.trajectories],
            max_completion_length=self.sampling.max_completion_length,
            max_turns=None if self.conversations is None else self.conversations.limits.turns,
        )
        if ends is None or self.function:
            name = next(iter(self.function), "its environment")
            raise DataError(f"{self.name}: {name} could grade no task; are there gold answers? see --answer-column")
        how, remedies = ends
        raise TrainingError(f"{self.name}: no conversation got a reward: {how}", remedies=remedies)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskResult:
    """What the model did on one task."""

    task: Task
    trajectories: tuple[Trajectory, ...]
    rewards: tuple[float | None, ...]
    """None: not graded; such a completion counts neither as right nor as wrong."""
    notes: tuple[str | None, ...]
    """What the grader said of each score, or why it failed."""
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
        graded = [(one.text, reward >= self.right) for one, reward in pairs if reward is not None]
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
    """What a judge spent; empty for any other grader."""
    reads_answers: bool
    """False where environments say what is right: a conversation need not state an answer."""
    mark: str = ""
    """How the grader wants answers marked, in words; empty: it asks for no mark."""

    @property
    def accuracy(self) -> Interval:
        """Wilson's interval for one completion per task; a normal one over tasks' shares for several."""
        graded = [outcome for outcome in self.outcomes if outcome.graded]
        if all(len(outcome.rewards) == 1 for outcome in graded):
            return wilson(sum(outcome.correct for outcome in graded), len(graded))
        return mean_interval([avg_at_k(outcome.correct, outcome.graded) for outcome in graded])

    def record(self) -> dict[str, object]:
        """The object that goes to `evals.jsonl`."""
        accuracy, trajectories = self.accuracy, [one for outcome in self.outcomes for one in outcome.trajectories]
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
            "completion_length_mean": sum(one.num_sampled for one in trajectories) / len(trajectories),
            "truncated_fraction": sum(one.finish_reason == "length" for one in trajectories) / len(trajectories),
        }
        turns = [len(trajectory.turns) for trajectory in trajectories if trajectory.environment is not None]
        if turns:
            record["turns_mean"] = sum(turns) / len(turns)
        formed = [one for outcome in self.outcomes for one in outcome.formed if one is not None]
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
        found = {"pass": math.fsum(pass_at_k(o.correct, o.graded, o.graded) for o in graded) / len(graded)}
        votes = [outcome.votes for outcome in graded]
        if any(answer is not None for task in votes for answer, _ in task):
            found["maj"] = math.fsum(map(maj_at_k, votes)) / len(graded)
        return found

    def shown(self) -> str:
        """The accuracy with its interval, and of several completions per task what else they say."""
        k = len(self.outcomes[0].rewards)
        others = [f"{name}@{k} {100 * value:.1f} %" for name, value in self.at_k().items()]
        return ", ".join([f"{percent_interval(self.accuracy)}{f' (avg@{k})' if k > 1 else ''}", *others])

    def describe(self) -> str:
        """The accuracy with its interval, the set, and of how many tasks."""
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
            "right_leniently": sum(isinstance(one["answer"], str) and is_right_leniently(one) for one in stated),
            "cut": sum(record["finish_reason"] == "length" for record in records),
            "ungraded": len(records) - len(graded),
        }

    def reasons(self) -> str:
        """One sentence on why the accuracy is what it is."""
        found = self.verdicts()
        parts = [f"{found['right']:,} right"]
        if self.reads_answers:
            parts.append(f"{found['wrong_answer']:,} with a wrong answer")
            parts.append(f"{found['no_answer']:,} without a marked answer")
        else:
            parts.append(f"{found['wrong_answer']:,} not right")
        if found["ungraded"]:
            parts.append(f"{found['ungraded']:,} not graded")
        lenient = f"; {found['right_leniently']:,} more would be right if read leniently" if self.reads_answers else ""
        cut = f"{found['cut']:,} cut at --max-completion-length"
        said = f"of {count(found['completions'], 'completion')}: {', '.join(parts)}{lenient}; {cut}"
        if not self.mark or found["no_answer"] < found["completions"] - found["ungraded"]:
            return said
        return (
            f"{said}; the model does not write {self.mark}: say so in the system message, show it an example, or grade "
            "by accuracy(plain=true)"
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
                **({} if self.reads_answers else {"judged_by": "environment"}),
                **({} if trajectory.environment is None else {"episode": episode_record(trajectory, outcome.task)}),
            }
            for outcome in self.outcomes
            for trajectory, reward, note, parsed, formed in zip(
                outcome.trajectories, outcome.rewards, outcome.notes, outcome.parsed, outcome.formed, strict=True
            )
        ]
