"""The table of metrics: what each number of `metrics.jsonl` means, and its unit.

One object per step. A name that is not in the table is refused, so that the table is the whole truth.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]
"""A JSON object of a run's files, for example a step's metrics by the names of `METRICS`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A named metric."""

    unit: str
    meaning: str


METRICS: Mapping[str, Metric] = {
    "step": Metric(unit="steps", meaning="1 for the first"),
    "epoch": Metric(unit="passes", meaning="passes over the dataset when the step ended"),
    "prompts": Metric(unit="prompts", meaning="prompts of the step"),
    "rollouts": Metric(unit="completions", meaning="completions of the step"),
    "policy_version": Metric(unit="updates", meaning="optimiser updates made when the step ended"),
    "updates": Metric(unit="updates", meaning="optimiser updates of the step; 0 when nothing carried signal"),
    "updates_skipped": Metric(
        unit="updates", meaning="not made, as loss or gradient was not finite; they count in no mean"
    ),
    "skipped_in_a_row": Metric(unit="updates", meaning="skipped since the last one that was made, over steps"),
    "micro_batch_tokens": Metric(
        unit="tokens", meaning="that a micro-batch had at most: fewer than asked for once memory had run out"
    ),
    "micro_batches_halved": Metric(unit="", meaning="times that memory ran out in the step"),
    "alarms": Metric(unit="", meaning="names of the alarms of `alarms.RULES` that hold when the step ends"),
    "reward_mean": Metric(unit="reward", meaning="mean over completions that have a reward; null when none has"),
    "reward_std": Metric(
        unit="reward", meaning="sample standard deviation over the same, whichever their group; null below two"
    ),
    "reward_std_within": Metric(
        unit="reward", meaning="mean of the groups' sample standard deviations; null where no group has two rewards"
    ),
    "advantage_mean": Metric(unit="", meaning="mean over completions in the loss; null when none is"),
    "sample_utilization": Metric(
        unit="share", meaning="completions in the loss, with a reward and neither masked nor left out, of all sampled"
    ),
    "format_accuracy": Metric(
        unit="share",
        meaning="completions in the format that reward functions ask for, right or wrong; only where one does",
    ),
    "rewards": Metric(
        unit="",
        meaning="by reward function: mean, std and count of its numbers, failures (completions), failed_calls, "
        "doubtful (completions graded alone, after two failures on all together), nans (that count as None), "
        "cut_short (completions that `code` graded in part, as the step had used up its time), seconds",
    ),
    "completion_length_mean": Metric(unit="tokens", meaning="mean over completions"),
    "completion_length_max": Metric(unit="tokens", meaning="the longest"),
    "truncated_fraction": Metric(unit="share", meaning="completions cut at max_completion_length"),
    "groups_zero_deviation": Metric(unit="groups", meaning="all rewards equal: no policy gradient"),
    "groups_no_reward": Metric(unit="groups", meaning="no completion has a reward"),
    "groups_filtered": Metric(unit="groups", meaning="outside filter_range: in no average and no update"),
    "groups_surplus": Metric(
        unit="groups", meaning="inside filter_range when the step was full: in no average or update"
    ),
    "groups_missing": Metric(unit="groups", meaning="prompts_per_step less the groups inside filter_range"),
    "refills": Metric(unit="rounds", meaning="further rounds of sampling to replace filtered groups"),
    "rollouts_without_reward": Metric(unit="completions", meaning="no reward function gave a number, or one failed"),
    "rollouts_masked": Metric(unit="completions", meaning="cut at max_completion_length and masked, by mask_truncated"),
    "rows_left_out": Metric(
        unit="rows",
        meaning="of a large dataset, passed over when they were taken, by `long_prompts` or `on_bad_row`",
    ),
    "prompts_truncated": Metric(unit="prompts", meaning="of a large dataset, cut to max_prompt_length"),
    "tokens_generated": Metric(unit="tokens", meaning="completion tokens sampled"),
    "staleness_mean": Metric(
        unit="updates", meaning="between the weights that sampled a token and those it trained, mean over tokens"
    ),
    "staleness_max": Metric(unit="updates", meaning="the largest of those"),
    "tokens_trained": Metric(unit="tokens", meaning="completion tokens with a gradient, per iteration"),
    "tokens_forwarded": Metric(
        unit="tokens", meaning="prompt and completion tokens that the model reads, padding included, per iteration"
    ),
    "loss": Metric(unit="", meaning="weighted sum of token losses, mean over updates"),
    "policy_loss": Metric(unit="", meaning="the policy term's share of the loss, without KL and entropy"),
    "entropy": Metric(unit="nats/token", meaning="of the policy when it first saw the rollouts, over trained tokens"),
    "kl": Metric(unit="nats/token", meaning="KL(policy || reference) by k3; only with beta > 0"),
    "grad_norm": Metric(unit="", meaning="before clipping, mean over updates"),
    "learning_rate": Metric(unit="", meaning="of the step"),
    "clip_low_fraction": Metric(unit="share", meaning="trained tokens held at 1 - clip_eps_low"),
    "clip_high_fraction": Metric(unit="share", meaning="trained tokens held at 1 + clip_eps_high"),
    "correction_masked_fraction": Metric(
        unit="share", meaning="trained tokens at rollout_correction's bound or masked"
    ),
    "off_policy_fraction": Metric(unit="share", meaning="trained tokens left out by off_policy_threshold"),
    "skipped_fraction": Metric(unit="share", meaning="trained tokens left out by skip_threshold"),
    "logprob_mismatch_mean": Metric(unit="nats", meaning="|engine's - trainer's| logprob, mean over trained tokens"),
    "logprob_mismatch_max": Metric(unit="nats", meaning="the largest of those"),
    "weights_bytes": Metric(
        unit="bytes", meaning="of the weights that each sampler, or rank with a copy, took to begin the step"
    ),
    "clock": Metric(
        unit="seconds",
        meaning="generate, reward, update, other, total; produce: all of the producing side, the way of weights and "
        "completions included; weights: the first of those ways; wait: how long training waited for it all; and "
        "tokens_per_second generated",
    ),
}

OPTIONAL = frozenset(
    {
        *("kl", "correction_masked_fraction", "off_policy_fraction", "skipped_fraction", "weights_bytes"),
        *("rows_left_out", "prompts_truncated", "format_accuracy"),
    }
)
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
