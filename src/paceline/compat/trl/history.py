"""The log: metrics of a step and of an evaluation under TRL's names, beside ours, and as a person sees them."""

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from paceline.metrics.statistics import mean_and_std
from paceline.training.learner.stats import UpdateStats
from paceline.training.rollouts.rounds import RolloutBatch

MetricsRecord = Mapping[str, Any]
LogNumbers = dict[str, float | None]

OF_TRAINING = ("loss", "grad_norm", "learning_rate")
"""Names that mark a line of the log as one of training steps; the summary has its own."""
LATEST = ("num_tokens", "epoch", "learning_rate", "grad_norm", "policy_version")
"""Names logged by their last value; all others by the mean since the last log."""
OURS = (
    *("policy_version", "updates", "reward_std_within", "advantage_mean", "sample_utilization", "format_accuracy"),
    *("tokens_generated", "tokens_trained", "tokens_forwarded"),
    *("groups_zero_deviation", "groups_no_reward", "groups_filtered", "groups_surplus", "groups_missing", "refills"),
    *("rollouts_without_reward", "rollouts_masked", "correction_masked_fraction", "off_policy_fraction"),
    *("skipped_fraction", "rows_left_out", "prompts_truncated"),
    *("router_disagreement", "expert_load_max", "experts_unused"),
)
"""Metrics of a step without a name in TRL."""
_REFUSED = re.compile(r"[^\w.: /-]")
"""Characters that some tracker refuses in a name: a reward function may be a lambda."""


def step_numbers(record: MetricsRecord, batch: RolloutBatch, *, num_tokens: int) -> LogNumbers:
    """A training step under TRL's names; `num_tokens` counts prompts and completions of the run so far."""
    return {
        **{name: record[name] for name in ("loss", "policy_loss", "grad_norm", "learning_rate")},
        "num_tokens": num_tokens,
        **rollout_numbers(record, batch),
        # a step without an update measured neither
        **{name: record[name] for name in ("entropy", "kl") if record.get(name) is not None},
        **clip_numbers(record["clip_low_fraction"], record["clip_high_fraction"]),
        "sampling/sampling_logp_difference/mean": record["logprob_mismatch_mean"],
        "sampling/sampling_logp_difference/max": record["logprob_mismatch_max"],
        "step_time": record["clock"]["total"],
        **{name: record[name] for name in OURS if name in record},
        **{f"clock/{phase}": seconds for phase, seconds in record["clock"].items() if phase != "time"},
        "epoch": record["epoch"],
    }


def clip_numbers(low: float, high: float) -> LogNumbers:
    """Share of tokens at each bound; in one process minimum and maximum equal the mean."""
    return {
        "clip_ratio/low_mean": low,
        "clip_ratio/low_min": low,
        "clip_ratio/high_mean": high,
        "clip_ratio/high_max": high,
        "clip_ratio/region_mean": low + high,
    }


def rollout_numbers(record: MetricsRecord, batch: RolloutBatch) -> LogNumbers:
    """Rewards and lengths of a step's or an evaluation's completions; terminated ones ended by themselves."""
    completions = [rollout.trajectory for group in batch.groups for rollout in group.rollouts]
    turns = [turn for completion in completions for turn in completion.turns]
    calls, failed = sum(turn.calls for turn in turns), sum(turn.failed_calls for turn in turns)
    asked = {
        "tools/call_frequency": calls / len(completions),
        "tools/failure_frequency": failed / calls if calls else 0.0,
    }
    silent = {completion.environment for completion in completions}
    rewards = {name: of for name, of in record["rewards"].items() if of["count"] or name not in silent}
    terminated = [completion.num_sampled for completion in completions if completion.finish_reason == "stop"]
    return {
        "completions/mean_length": record["completion_length_mean"],
        "completions/min_length": min(completion.num_sampled for completion in completions),
        "completions/max_length": record["completion_length_max"],
        "completions/clipped_ratio": record["truncated_fraction"],
        "completions/mean_terminated_length": mean_and_std(terminated)[0] or 0.0,
        "completions/min_terminated_length": min(terminated, default=0),
        "completions/max_terminated_length": max(terminated, default=0),
        "reward": record["reward_mean"],
        "reward_std": record["reward_std"],
        **{f"rewards/{name}/{key}": of[key] for name, of in rewards.items() for key in ("mean", "std")},
        **(asked if turns else {}),
        "frac_reward_zero_std": (record["groups_zero_deviation"] + record["groups_no_reward"]) / len(batch.groups),
    }


def eval_numbers(record: MetricsRecord, batch: RolloutBatch, stats: UpdateStats, *, prefix: str) -> LogNumbers:
    """An evaluation under TRL's names, each after `prefix` and an underscore.

    `stats` is the learner's result on its groups; `runtime` excludes it. The whole evaluation counts as one step.
    """
    seconds = record["clock"]["seconds"]
    numbers = {
        "loss": stats.loss,
        **{name: value for name, value in (("entropy", stats.entropy), ("kl", stats.kl)) if value is not None},
        **clip_numbers(stats.clip_low_fraction, stats.clip_high_fraction),
        **rollout_numbers(record, batch),
        "num_samples": record["n"],
        "runtime": seconds,
        "samples_per_second": record["n"] / seconds if seconds else 0.0,
        "steps_per_second": 1 / seconds if seconds else 0.0,
    }
    return {f"{prefix}_{name}": value for name, value in numbers.items()}


def unrewarded(batch: RolloutBatch) -> str:
    """Warning about the completions that no reward function gave a number, with the first of them; empty: none."""
    rows = [
        (group.task, rollout) for group in batch.groups for rollout in group.rollouts if rollout.dropped == "no_reward"
    ]
    if not rows:
        return ""
    task, rollout = rows[0]
    keywords = {"prompt": task.prompt, "completion": rollout.trajectory.text}
    return (
        f"All reward functions returned None for the following kwargs: {keywords} ({len(rows)} completions of this "
        "step); they are not trained on"
    )


def num_tokens(batch: RolloutBatch) -> int:
    """Tokens of a step: each prompt once per completion, and the completions with what environments wrote in them."""
    pairs = [(group.task, rollout.trajectory) for group in batch.groups for rollout in group.rollouts]
    return sum(len(task.prompt_ids) + len(trajectory.completion_ids) for task, trajectory in pairs)


def averaged(window: Sequence[LogNumbers]) -> LogNumbers:
    """One line of the log from the steps since the last; None for a metric without a number.

    >>> averaged([{"reward": 1.0, "epoch": 0.5}, {"reward": None, "epoch": 1.0}])
    {'reward': 1.0, 'epoch': 1.0}
    """
    names = dict.fromkeys(name for step in window for name in step)
    return {
        name: window[-1][name] if name in LATEST else mean_and_std([step.get(name) for step in window])[0]
        for name in names
    }


def summary(totals: LogNumbers, window: Sequence[LogNumbers]) -> LogNumbers:
    """Last line of the log: totals of the run, and the steps since the last line.

    >>> summary({"train_loss": 0.5}, [{"reward": 1.0, "loss": 0.25}])
    {'train_loss': 0.5, 'reward': 1.0}
    """
    pending = {name: value for name, value in averaged(window).items() if name not in OF_TRAINING}
    return {**totals, **pending}


def tracker_numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """A line of the log for the trackers, in the groups `train/` and `eval/`."""
    return {
        _REFUSED.sub("_", f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}"): value
        for name, value in logs.items()
        if isinstance(value, int | float)
    }


class _WithoutOurs(TrainerCallback):
    """Shows no metrics of our own: those stay in `log_history`, `metrics.jsonl` and the trackers."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **parts: Any) -> None:
        shown = {name: value for name, value in logs.items() if name not in OURS and not name.startswith("clock/")}
        super().on_log(args, state, control, logs=shown, **parts)


class LogPrinter(_WithoutOurs, PrinterCallback):
    """One line per log, without a progress bar."""


class LogProgress(_WithoutOurs, ProgressCallback):
    """One line per log above a progress bar."""


def print_completions(
    console: Console, batch: RolloutBatch, *, title: str, limit: int | None, columns: Mapping[str, Sequence[Any]]
) -> None:
    """Print the first `limit` completions (None: all) with prompt, rewards and advantage; `columns` are extra."""
    rows = [(group.task, rollout) for group in batch.groups for rollout in group.rollouts]
    names = list(batch.scores.values)
    table = Table(title=title, show_lines=True)
    for heading in ("prompt", "completion", *names, *columns, "advantage"):
        table.add_column(heading)
    for index, (task, rollout) in enumerate(rows[:limit]):
        rewards = [rollout.rewards[name] for name in names]
        scores = ["none" if reward is None else f"{reward:.2f}" for reward in rewards]
        more = [str(values[index]) if index < len(values) else "" for values in columns.values()]
        texts = (task.prompt, rollout.trajectory.text, *scores, *more, f"{rollout.advantage:.2f}")
        table.add_row(*map(Text, texts))
    console.print(table)


def shown_metrics(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Return numbers as text for a person, in alphabetical order."""
    shown = {}
    for name, value in sorted(metrics.items()):
        shown[name] = str(round(value, 4)) if isinstance(value, float) else str(value)
        if name.endswith("_runtime"):
            shown[name] = f"{timedelta(seconds=int(value))}.{int(value % 1 * 100):02d}"
    return shown


def metrics_text(split: str, metrics: Mapping[str, Any]) -> str:
    """A heading and one aligned line per number, in alphabetical order.

    >>> print(metrics_text("train", {"train_loss": 0.123456, "n": 3}))
    ***** train metrics *****
      n          =      3
      train_loss = 0.1235
    """
    shown = shown_metrics(metrics)
    widths = (max(map(len, shown), default=0), max(map(len, shown.values()), default=0))
    lines = [f"  {name:<{widths[0]}} = {value:>{widths[1]}}" for name, value in shown.items()]
    return "\n".join([f"***** {split} metrics *****", *lines])
