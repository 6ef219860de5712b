"""Sums over a whole run: where the seconds went, and everything that was dropped, cut, failed or unreadable."""

from collections import Counter
from collections.abc import Sequence

from paceline.metrics.definitions import Record
from paceline.reports.page.reading import RunRecord, value_at
from paceline.reports.page.series import total

PARTS = ("generate", "reward", "update", "evaluate", "checkpoint", "other")
"""Kinds of work that take a run's time, in the palette's order."""


def time_split(run: RunRecord) -> dict[str, float]:
    """Seconds of each of `PARTS`: from the summary of an ended run, else so far; parts of no time left out."""
    seconds = {}
    for name in PARTS:
        found = value_at(run.summary or {}, "clock", name)
        if found is None:
            found = total(run.evals, "clock", "seconds") if name == "evaluate" else total(run.metrics, "clock", name)
        seconds[name] = found
    return {name: found for name, found in seconds.items() if found > 0}


def total_seconds(run: RunRecord) -> float:
    """Wall time of the run so far."""
    ended = value_at(run.summary or {}, "clock", "total")
    return sum(time_split(run).values()) if ended is None else ended


def dropped_counts(run: RunRecord) -> list[tuple[str, float, float | None]]:
    """What did not count, how many, and of how many (None where a share says nothing).

    There is a row for each way of being left out, with zeros too, for a zero is an answer.
    """
    metrics = run.metrics
    prompts, completions, trained = (total(metrics, key) for key in ("prompts", "rollouts", "tokens_trained"))
    rows: list[tuple[str, float, float | None]] = [
        ("Groups without signal: all rewards equal", total(metrics, "groups_zero_deviation"), prompts),
        ("Groups without any reward", total(metrics, "groups_no_reward"), prompts),
        ("Groups outside the filter range", total(metrics, "groups_filtered"), prompts),
        ("Groups that steps were short of after the last refill", total(metrics, "groups_missing"), None),
        ("Completions without a reward", total(metrics, "rollouts_without_reward"), completions),
        ("Completions cut at the length limit and masked", total(metrics, "rollouts_masked"), completions),
    ]

    def by_function(key: str) -> list[tuple[str, float]]:
        return [(name, total(metrics, "rewards", name, key)) for name in run.reward_functions]

    failed = "Completions on which the reward function {} failed"
    in_part = "Completions that {} graded in part, as the step had used up its time for slow programs"
    rows += [(failed.format(name), number, completions) for name, number in by_function("failures")]
    rows += [(f"Failed calls of the reward function {name}", n, None) for name, n in by_function("failed_calls") if n]
    rows += [(in_part.format(name), number, completions) for name, number in by_function("cut_short") if number]
    # trained tokens that an option left out or held, where the option is on
    for key, what in (
        ("correction_masked_fraction", "Tokens held or masked by the rollout correction"),
        ("off_policy_fraction", "Tokens of completions left out as off-policy"),
        ("skipped_fraction", "Tokens of completions skipped for their ratio"),
    ):
        if any(value_at(record, key) is not None for record in metrics):
            rows.append((what, _whole(metrics, key, "tokens_trained"), trained))
    skipped = total(metrics, "updates_skipped")
    rows += [
        (
            "Training completions cut at the length limit",
            _whole(metrics, "truncated_fraction", "rollouts"),
            completions,
        ),
        ("Held-out completions that could not be graded", total(run.evals, "ungraded"), None),
        ("Updates skipped, as loss or gradient was not finite", skipped, total(metrics, "updates") + skipped),
    ]
    # steps that an alarm held for
    active = [record["alarms"] for record in metrics if isinstance(record.get("alarms"), list)]
    steps = Counter(name for alarms in active for name in alarms if isinstance(name, str))
    rows += [(f"Steps with the alarm {name}", number, len(metrics)) for name, number in steps.items()]
    rows.append(("Unreadable lines in this run's files", run.unreadable_lines, None))
    return rows


def _whole(metrics: Sequence[Record], share: str, of: str) -> float:
    """The share of each step times the number that it is of: whole numbers again."""
    both = ((value_at(record, share), value_at(record, of)) for record in metrics)
    return sum(round(part * number) for part, number in both if part is not None and number is not None)
