"""Numbers of steps as lines of a chart, thinned where there are more steps than pixels, and as sums over the run."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline.metrics.definitions import Record
from paceline.metrics.statistics import mean_of
from paceline.reports.page.reading import RunRecord, value_at

MAX_POINTS = 400
"""Most points of one line: about one per pixel of a chart."""

Values = tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One line of a chart; None is a step that has no such number."""

    steps: tuple[float, ...]
    """Step of each point: of several steps in one, the last."""
    values: Values
    first_steps: tuple[float, ...] = ()
    """First step of each point; empty where every step has its own point."""

    @property
    def last(self) -> float | None:
        """Newest number; None where there is none."""
        return next((value for value in reversed(self.values) if value is not None), None)

    @property
    def empty(self) -> bool:
        """Return True if there is no number at all."""
        return self.last is None


def bin_size(num_steps: int) -> int:
    """Steps that share one point."""
    return max(1, math.ceil(num_steps / MAX_POINTS))


def metric(records: Sequence[Record], *keys: str, reduce: Callable[[Sequence[float]], float] = mean_of) -> Series:
    """The number at `keys` of every step; long runs put `bin_size` steps into one point by `reduce`."""
    size = bin_size(len(records))
    bins = [records[start : start + size] for start in range(0, len(records), size)]
    return Series(
        steps=tuple(float(part[-1]["step"]) for part in bins),
        values=tuple(_reduced([value_at(record, *keys) for record in part], reduce) for part in bins),
        first_steps=tuple(float(part[0]["step"]) for part in bins) if size > 1 else (),
    )


def scaled(series: Series, by: Series) -> Series:
    """Each value divided by the other series' value of the same step."""
    pairs = zip(series.values, by.values, strict=True)
    return replace(series, values=tuple(a / b if a is not None and b else None for a, b in pairs))


def smoothed(series: Series, window: int) -> Series:
    """Centred moving mean over `window` points (odd), over those of them that exist near both ends."""
    reach, values = window // 2, series.values
    around = (values[max(0, i - reach) : i + reach + 1] for i in range(len(values)))
    return replace(series, values=tuple(_reduced(part, mean_of) for part in around))


def total(records: Sequence[Record], *keys: str) -> float:
    """Sum over all steps; steps without the number add nothing."""
    return math.fsum(value for record in records if (value := value_at(record, *keys)) is not None)


def _reduced(values: Sequence[float | None], reduce: Callable[[Sequence[float]], float]) -> float | None:
    present = [value for value in values if value is not None]
    return reduce(present) if present else None


PARTS = ("generate", "reward", "update", "evaluate", "checkpoint", "other")
"""Kinds of work that take a run's time, in the palette's order."""


def time_split(run: RunRecord) -> dict[str, float]:
    """Seconds of each of `PARTS` that took time: from the summary of an ended run, else so far."""
    seconds = {}
    for name in PARTS:
        spent = value_at(run.summary or {}, "clock", name)
        if spent is None:
            spent = total(run.evals, "clock", "seconds") if name == "evaluate" else total(run.metrics, "clock", name)
        seconds[name] = spent
    return {name: spent for name, spent in seconds.items() if spent > 0}


def total_seconds(run: RunRecord) -> float:
    """Wall time of the run so far."""
    ended = value_at(run.summary or {}, "clock", "total")
    return sum(time_split(run).values()) if ended is None else ended


def dropped_counts(run: RunRecord) -> list[tuple[str, float, float | None]]:
    """Count everything that was left out: what, how many, and of how many (None where a share says nothing).

    Zeros have rows too.
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
    """Add up each step's share times its denominator, rounded to whole numbers."""
    both = ((value_at(record, share), value_at(record, of)) for record in metrics)
    return sum(round(part * number) for part, number in both if part is not None and number is not None)
