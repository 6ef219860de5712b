"""The table of metrics: what each number of `metrics.jsonl` means, and its unit.

One object per step. A name that is not in the table is refused, so that the table is the whole truth.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]
"""A JSON object of a run's files, for example a step's metrics by the names of `METRICS`."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A named metric."""

    unit: str
    meaning: str
    optional: bool = False
    """True if records lack it where it has no meaning."""


METRICS: Mapping[str, Metric] = {
    "step": Metric("steps", "1 for the first"),
    "epoch": Metric("passes", "passes over the dataset when the step ended"),
    "prompts": Metric("prompts", "prompts of the step"),
    "rollouts": Metric("completions", "completions of the step"),
    "policy_version": Metric("updates", "optimiser updates made when the step ended"),
    "updates": Metric("updates", "optimiser updates of the step; 0 when nothing carried signal"),
    "updates_skipped": Metric("updates", "not made, as loss or gradient was not finite; they count in no mean"),
    "skipped_in_a_row": Metric("updates", "skipped since the last one that was made, over steps"),
    "micro_batch_tokens": Metric("tokens", "most of a micro-batch: fewer than asked for once memory had run out"),
    "micro_batches_halved": Metric("", "times that memory ran out in the step"),
    "alarms": Metric("", "names of the alarms of `alarms.RULES` that hold when the step ends"),
    "reward_mean": Metric("reward", "mean over completions that have a reward; null when none has"),
    "reward_std": Metric("reward", "sample standard deviation over the same, whichever their group; null below two"),
    "reward_std_within": Metric(
        "reward", "mean of the groups' sample standard deviations; null where no group has two rewards"
    ),
    "advantage_mean": Metric("", "mean over completions in the loss; null when none is"),
    "sample_utilization": Metric(
        "share", "completions in the loss, with a reward and neither masked nor left out, of all sampled"
    ),
    "format_accuracy": Metric(
        "share",
        "completions in the format that reward functions ask for, right or wrong; only where one does",
        optional=True,
    ),
    "rewards": Metric(
        "",
        "by reward function: mean, std and count of its numbers, failures (completions), failed_calls, "
        "doubtful (completions graded alone, after two failures on all together), nans (that count as None), "
        "cut_short (completions that `code` graded in part, as the step had used up its time), seconds; of a judge "
        "what it spent: verdicts, cached, calls, retries, unsaved, cache_hit_rate, failed (verdicts by kind), "
        "tokens_read, tokens_written, latency_mean (seconds), agreement (1 less the mean difference of two verdicts "
        "on the same)",
    ),
    "completion_length_mean": Metric("tokens", "mean over completions"),
    "completion_length_max": Metric("tokens", "the longest"),
    "truncated_fraction": Metric("share", "completions cut at max_completion_length"),
    "groups_zero_deviation": Metric("groups", "all rewards equal: no policy gradient"),
    "groups_no_reward": Metric("groups", "no completion has a reward"),
    "groups_filtered": Metric("groups", "outside filter_range: in no average and no update"),
    "groups_surplus": Metric("groups", "inside filter_range when the step was full: in no average or update"),
    "groups_missing": Metric("groups", "prompts_per_step less the groups inside filter_range"),
    "refills": Metric("rounds", "further rounds of sampling to replace filtered groups"),
    "rollouts_without_reward": Metric("completions", "no reward function gave a number, or one failed"),
    "rollouts_masked": Metric("completions", "cut at max_completion_length and masked, by mask_truncated"),
    "rows_left_out": Metric(
        "rows",
        "of a large dataset, passed over when they were taken, by `long_prompts` or `on_bad_row`",
        optional=True,
    ),
    "prompts_truncated": Metric("prompts", "of a large dataset, cut to max_prompt_length", optional=True),
    "images": Metric("images", "in the prompts of the step; this and what follows it only with images", optional=True),
    "image_tokens_share": Metric(
        "share", "of the prompts' tokens, those from the first to the last of an image", optional=True
    ),
    "tokens_generated": Metric("tokens", "completion tokens sampled"),
    "turns_mean": Metric(
        "turns",
        "of the model in an episode, mean over episodes; this and what follows it of episodes only",
        optional=True,
    ),
    "turns_max": Metric("turns", "the most of those", optional=True),
    "observed_tokens": Metric(
        "tokens", "written by environments and chat templates between turns: read, not trained", optional=True
    ),
    "branches": Metric(
        "", "turns with a context of their own, as the chat template or an agent rewrote the history", optional=True
    ),
    "tool_calls": Metric("calls", "asked for by the model, malformed ones not among them", optional=True),
    "malformed_calls": Metric("turns", "with a tool call that could not be read", optional=True),
    "environment_seconds": Metric(
        "seconds", "that environments took for all observations, added up over episodes", optional=True
    ),
    "episode_ends": Metric(
        "", "episodes by the reason of their end: done, max_turns, length, failed, timed_out", optional=True
    ),
    "turns_without_sibling": Metric(
        "turns",
        "reached by one episode of its group alone, compared by the group's mean; only where turns are credited",
        optional=True,
    ),
    "staleness_mean": Metric(
        "updates", "between the weights that sampled a token and those it trained, mean over tokens"
    ),
    "staleness_max": Metric("updates", "the largest of those"),
    "tokens_trained": Metric("tokens", "completion tokens with a gradient, per iteration"),
    "tokens_forwarded": Metric(
        "tokens", "prompt and completion tokens that the model reads, padding included, per iteration"
    ),
    "loss": Metric("", "weighted sum of token losses, mean over updates"),
    "policy_loss": Metric("", "the policy term's share of the loss, without KL and entropy"),
    "entropy": Metric("nats/token", "of the policy when it first saw the rollouts, over trained tokens"),
    "kl": Metric("nats/token", "KL(policy || reference) by k3; only with beta > 0", optional=True),
    "grad_norm": Metric("", "before clipping, mean over updates"),
    "learning_rate": Metric("", "of the step"),
    "clip_low_fraction": Metric("share", "trained tokens held at 1 - clip_eps_low"),
    "clip_high_fraction": Metric("share", "trained tokens held at 1 + clip_eps_high"),
    "correction_masked_fraction": Metric(
        "share", "trained tokens at rollout_correction's bound or masked", optional=True
    ),
    "off_policy_fraction": Metric("share", "trained tokens left out by off_policy_threshold", optional=True),
    "skipped_fraction": Metric("share", "trained tokens left out by skip_threshold", optional=True),
    "logprob_mismatch_mean": Metric("nats", "|engine's - trainer's| logprob, mean over trained tokens"),
    "logprob_mismatch_max": Metric("nats", "the largest of those"),
    "logprob_mismatch_by_turn": Metric(
        "nats",
        "logprob_mismatch_mean over the tokens of each turn, by its number: 1 to 7, and 8+ for all later ones; only "
        "where there is a second turn. A template, a cache or a position that differs shows from turn 2 on",
        optional=True,
    ),
    "router_disagreement": Metric(
        "share",
        "routes of trained tokens, token by layer, where the trainer's router chose another set of experts than the "
        "engine's; only where the engine notes them (--router-replay)",
        optional=True,
    ),
    "expert_load_max": Metric(
        "",
        "trained tokens that the busiest expert took, over the mean of its layer's experts: 1 is even; this and the "
        "next of models with experts only, and not where ranks share tokens or layers",
        optional=True,
    ),
    "experts_unused": Metric("experts", "of all layers, that no trained token of the step took", optional=True),
    "weights_bytes": Metric(
        "bytes", "of the weights that each sampler, or rank with a copy, took to begin the step", optional=True
    ),
    "clock": Metric(
        "seconds",
        "generate, reward, update, other, total; produce: all of the producing side, the way of weights and "
        "completions included; weights: the first of those ways; wait: how long training waited for it all; "
        "tokens_per_second generated; with images in one process vision: encoding them, since the step before, and "
        "image_reuse: the share of images whose features were there already; and time: when the step ended, in seconds "
        "since 1970",
    ),
}

OPTIONAL = frozenset(name for name, metric in METRICS.items() if metric.optional)
"""Metrics that are absent where they have no meaning; all others are in every record."""


def check_record(record: Mapping[str, object]) -> None:
    """Refuse a step's record whose names differ from the table's.

    Raises:
        ValueError: naming what is unknown or missing.
    """
    unknown = sorted(set(record) - set(METRICS))
    missing = sorted(set(METRICS) - OPTIONAL - set(record))
    if unknown or missing:
        raise ValueError(f"a step's metrics must be those of the table; unknown: {unknown}, missing: {missing}")
