"""Sums over a whole run: where the seconds went, and everything that was dropped, cut, failed or unreadable."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.metrics.definitions import Record
from paceline.reports.page.charts import reward_functions
from paceline.reports.page.reading import RunRecord, value_at
from paceline.reports.page.series import total

_PARTS = ("generate", "reward", "update", "evaluate", "checkpoint", "other")


@dataclass(frozen=True, kw_only=True, slots=True)
class TimePart:
    """Seconds that one kind of work took."""

    name: str
    seconds: float
    colour: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DroppedCount:
    """How many of something did not count."""

    what: str
    number: float
    of: float | None
    """How many there were in all; None where a share says nothing."""


def time_split(run: RunRecord) -> list[TimePart]:
    """From the summary of an ended run, else from its steps and evaluations so far; parts of no time left out."""
    seconds = {name: _seconds(run, name) for name in _PARTS}
    return [
        TimePart(name=name, seconds=seconds[name], colour=colour)
        for colour, name in enumerate(_PARTS, start=1)
        if seconds[name] > 0
    ]


def total_seconds(run: RunRecord) -> float:
    """Wall time of the run so far."""
    ended = value_at(run.summary, "clock", "total") if run.summary is not None else None
    return sum(part.seconds for part in time_split(run)) if ended is None else ended


def dropped_counts(run: RunRecord) -> list[DroppedCount]:
    """One row per way of being left out; zeros too, for a zero is an answer."""
    prompts, completions = total(run.metrics, "prompts"), total(run.metrics, "rollouts")
    failures = [
        DroppedCount(
            what=f"Completions on which the reward function {name} failed",
            number=total(run.metrics, "rewards", name, "failures"),
            of=completions,
        )
        for name in reward_functions(run.metrics)
    ]
    failures += [
        DroppedCount(
            what=f"Failed calls of the reward function {name}",
            number=failed,
            of=None,
        )
        for name in reward_functions(run.metrics)
        if (failed := total(run.metrics, "rewards", name, "failed_calls"))
    ]
    failures += [
        DroppedCount(
            what=f"Completions that {name} graded in part, as the step had used up its time for slow programs",
            number=cut_short,
            of=completions,
        )
        for name in reward_functions(run.metrics)
        if (cut_short := total(run.metrics, "rewards", name, "cut_short"))
    ]
    groups = (
        ("groups_zero_deviation", "Groups without signal: all rewards equal", prompts),
        ("groups_no_reward", "Groups without any reward", prompts),
        ("groups_filtered", "Groups outside the filter range", prompts),
        ("groups_missing", "Groups that steps were short of after the last refill", None),
        ("rollouts_without_reward", "Completions without a reward", completions),
        ("rollouts_masked", "Completions cut at the length limit and masked", completions),
    )
    return [
        *(DroppedCount(what=what, number=total(run.metrics, key), of=of) for key, what, of in groups),
        *failures,
        *_dropped_tokens(run.metrics),
        DroppedCount(
            what="Training completions cut at the length limit", number=_truncated(run.metrics), of=completions
        ),
        DroppedCount(
            what="Held-out completions that could not be graded", number=total(run.evals, "ungraded"), of=None
        ),
        DroppedCount(
            what="Updates skipped, as loss or gradient was not finite",
            number=total(run.metrics, "updates_skipped"),
            of=total(run.metrics, "updates") + total(run.metrics, "updates_skipped"),
        ),
        *_alarms(run.metrics),
        DroppedCount(what="Unreadable lines in this run's files", number=run.unreadable_lines, of=None),
    ]


def _alarms(metrics: Sequence[Record]) -> list[DroppedCount]:
    """Steps that an alarm held for; no row for one that was never active."""
    active = [record["alarms"] for record in metrics if isinstance(record.get("alarms"), list)]
    steps = Counter(name for alarms in active for name in alarms if isinstance(name, str))
    return [
        DroppedCount(what=f"Steps with the alarm {name}", number=number, of=len(metrics))
        for name, number in steps.items()
    ]


def _dropped_tokens(metrics: Sequence[Record]) -> list[DroppedCount]:
    """Trained tokens that an option left out or held; no row where the option is off."""
    trained = total(metrics, "tokens_trained")
    shares = (
        ("correction_masked_fraction", "Tokens held or masked by the rollout correction"),
        ("off_policy_fraction", "Tokens of completions left out as off-policy"),
        ("skipped_fraction", "Tokens of completions skipped for their ratio"),
    )
    return [
        DroppedCount(what=what, number=_share_of_tokens(metrics, key), of=trained)
        for key, what in shares
        if any(value_at(record, key) is not None for record in metrics)
    ]


def _share_of_tokens(metrics: Sequence[Record], key: str) -> float:
    both = ((value_at(record, key), value_at(record, "tokens_trained")) for record in metrics)
    return sum(round(share * number) for share, number in both if share is not None and number is not None)


def _seconds(run: RunRecord, name: str) -> float:
    ended = value_at(run.summary, "clock", name) if run.summary is not None else None
    if ended is not None:
        return ended
    return total(run.evals, "clock", "seconds") if name == "evaluate" else total(run.metrics, "clock", name)


def _truncated(metrics: Sequence[Record]) -> float:
    """The share of each step times its completions: whole numbers again."""
    both = ((value_at(record, "truncated_fraction"), value_at(record, "rollouts")) for record in metrics)
    return sum(round(share * number) for share, number in both if share is not None and number is not None)
