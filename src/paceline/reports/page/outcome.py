"""What the run achieved on held-out tasks: before, after, and the difference with its interval."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.metrics.comparisons import Comparison, compare_records
from paceline.metrics.definitions import Record
from paceline.metrics.intervals import Interval
from paceline.reports.page.reading import RunRecord, read_lines, value_at


@dataclass(frozen=True, kw_only=True, slots=True)
class AccuracyGain:
    """Accuracy of the first and the newest evaluation of the run's first held-out set."""

    set_name: str
    num_tasks: int
    first_step: int
    last_step: int
    before: Interval
    after: Interval | None
    """None while there is one evaluation only."""
    difference: Interval | None
    """None too where the two did not measure the same tasks."""
    comparison: Comparison | None
    """The test behind the difference, likewise."""
    best_step: int
    """The highest of the evaluations after the first, the last of equals; the first, where it is alone."""
    looks: int
    """Evaluations after the first."""


TextPair = tuple[Record, Record]
"""Completions to read side by side, the earlier one first."""

FATES = {
    "fixed": (False, True, "wrong before, right after"),
    "kept": (True, True, "right both times"),
    "missed": (False, False, "wrong both times"),
    "broken": (True, False, "right before, wrong after"),
}
"""What became of a held-out task: right before, right after, and both in words; the most telling first."""


def outcome(run: RunRecord) -> AccuracyGain | None:
    """From the run's summary once it has one, else from the evaluations so far; None without any."""
    evals = evaluations(run, first_set(run))
    if not evals:
        return None
    first, last = evals[0], evals[-1]
    before, after, difference, comparison = _interval(first), None, None, None
    if len(evals) > 1:
        summary, both = run.summary or {}, pairs(run)
        before = _summarised(summary, "before", "accuracy") or before
        after = _summarised(summary, "after", "accuracy") or _interval(last)
        comparison = compare_records([b for b, _ in both], [a for _, a in both])
        measured = None if comparison is None else comparison.difference
        difference = _summarised(summary, "difference", "value") or measured
    best = max(reversed(evals[1:] or evals), key=lambda record: value_at(record, "accuracy") or 0.0)
    return AccuracyGain(
        set_name=str(first["set"]),
        num_tasks=int(value_at(first, "n") or 0),
        first_step=int(first["step"]),
        last_step=int(last["step"]),
        before=before,
        after=after,
        difference=difference,
        comparison=comparison,
        best_step=int(best["step"]),
        looks=len(evals) - 1,
    )


def set_names(run: RunRecord) -> list[str]:
    """Held-out sets that accuracy was measured on, in the order of their first evaluation."""
    return list(dict.fromkeys(str(one["set"]) for one in run.evals if value_at(one, "accuracy") is not None))


def first_set(run: RunRecord) -> str | None:
    """The set that the headline is about."""
    return next(iter(set_names(run)), None)


def evaluations(run: RunRecord, set_name: str | None) -> list[Record]:
    """All measurements of one set, oldest first."""
    return [record for record in run.evals if record["set"] == set_name and value_at(record, "accuracy") is not None]


def pairs(run: RunRecord) -> list[TextPair]:
    """Completions of the same task in the first and the newest evaluation; none unless both hold the same tasks."""
    set_name = first_set(run)
    steps = sorted(step for name, step in run.completion_files if name == set_name)
    if set_name is None or len(steps) < 2:
        return []
    before, after = (
        read_lines(run.completion_files[set_name, step], ("task_id",))[0] for step in (steps[0], steps[-1])
    )
    if [record["task_id"] for record in before] != [record["task_id"] for record in after]:
        return []
    return list(zip(before, after, strict=True))


def fates(both: Sequence[TextPair]) -> dict[str, list[TextPair]]:
    """Sort paired completions by `FATES`; only those that were graded both times."""
    return {
        name: [(before, after) for before, after in both if [correct(before), correct(after)] == sides]
        for name, (*sides, _) in FATES.items()
    }


def correct(record: Record) -> bool | None:
    """Return True if a held-out completion was right; None if it could not be graded."""
    return record["correct"] if "correct" in record and isinstance(record["correct"], bool) else None


def _interval(record: Record, value: str = "accuracy") -> Interval:
    middle, low, high = (value_at(record, key) for key in (value, "ci_low", "ci_high"))
    middle = middle or 0.0
    return Interval(value=middle, low=middle if low is None else low, high=middle if high is None else high)


def _summarised(summary: Record, key: str, value: str) -> Interval | None:
    return _interval(summary[key], value) if value_at(summary, key, value) is not None else None
