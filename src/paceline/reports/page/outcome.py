"""What the run achieved on held-out tasks: before, after, the difference with its interval, and what of it is form."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from paceline.chat.thinking import prefills_think, visible_text
from paceline.data.answers import final_answer
from paceline.metrics.comparisons import Comparison, compare_records
from paceline.metrics.definitions import Record
from paceline.metrics.statistics import Interval
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
    """Newest accuracy; None while there is one evaluation only."""
    difference: Interval | None
    """Paired difference; None also where the two evaluations did not measure the same tasks."""
    comparison: Comparison | None
    """Test of the difference; None likewise."""
    best_step: int
    """Step of the highest evaluation after the first, the last of equals; the first, where it is alone."""
    looks: int
    """Evaluations after the first."""


TextPair = tuple[Record, Record]
"""Completions of one task, the earlier first."""

FATES = {
    "wrong before, right after": (False, True),
    "right both times": (True, True),
    "wrong both times": (False, False),
    "right before, wrong after": (True, False),
}
"""Outcomes of a held-out task: whether it was right before, and after."""


def outcome(run: RunRecord) -> AccuracyGain | None:
    """Compare the first and the newest evaluation, by the run's summary once there is one; None without evaluations."""
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
    return list(dict.fromkeys(str(record["set"]) for record in run.evals if value_at(record, "accuracy") is not None))


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


def fates(both: Sequence[TextPair]) -> dict[str, int]:
    """Count paired completions by `FATES`; only those that were graded both times."""
    graded = [(correct(before), correct(after)) for before, after in both]
    return {words: graded.count(sides) for words, sides in FATES.items()}


def correct(record: Record) -> bool | None:
    """Return True if a held-out completion was right; None if it could not be graded."""
    return record["correct"] if "correct" in record and isinstance(record["correct"], bool) else None


def _interval(record: Record, value: str = "accuracy") -> Interval:
    middle, low, high = (value_at(record, key) for key in (value, "ci_low", "ci_high"))
    middle = middle or 0.0
    return Interval(value=middle, low=middle if low is None else low, high=middle if high is None else high)


def _summarised(summary: Record, key: str, value: str) -> Interval | None:
    return _interval(summary[key], value) if value_at(summary, key, value) is not None else None


_NUMBER = re.compile(r"[-+]?[0-9]{1,100}(?:\.[0-9]{1,100}|/0*[1-9][0-9]{0,99})?")
"""Numbers that `Fraction` reads, with a bound on their digits: endless ones would take long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """Effect of the answers' form on a gain: shares of completions with a gold answer, before and after."""

    right: tuple[float, float]
    """Shares that the grader called right."""
    right_leniently: tuple[float, float]
    """The same with those that state the gold answer in any form."""
    marked: tuple[float, float]
    """Shares with an answer in a tag, a box or after `####`, right or wrong."""

    @property
    def gain(self) -> float:
        """Return the gain among answers that the grader called right."""
        return self.right[1] - self.right[0]

    @property
    def gain_by_form(self) -> float:
        """The part of `gain` that a lenient grader would not have seen."""
        return self.gain - (self.right_leniently[1] - self.right_leniently[0])


def form_of(both: Sequence[TextPair]) -> Form | None:
    """Compute the shares from paired completions; None where no task has a gold answer, as for programs, or where
    environments decide what is right."""

    def has_a_gold_answer(record: Record) -> bool:
        return correct(record) is not None and isinstance(record.get("answer"), str) and "judged_by" not in record

    graded = [pair for pair in both if all(map(has_a_gold_answer, pair))]
    if not graded:
        return None

    def shares(of: list[list[bool]]) -> tuple[float, float]:
        before, after = (sum(column) / len(graded) for column in zip(*of, strict=True))
        return before, after

    return Form(
        right=shares([[correct(record) is True for record in pair] for pair in graded]),
        right_leniently=shares([[is_right_leniently(record) for record in pair] for pair in graded]),
        marked=shares([[final_answer(_visible_completion(record)) is not None for record in pair] for pair in graded]),
    )


def is_right_leniently(record: Record) -> bool:
    """True if a completion was graded right, or its visible text ends on the gold answer, however that is marked.

    A completion that was cut at the limit has no end, so there only a marked answer counts.
    Answers are the same where their texts or their numbers are. A grader with more mathematics may call more right, and
    what it calls right is right here.
    """
    if correct(record) is True:
        return True
    is_cut = "finish_reason" in record and record["finish_reason"] == "length"
    stated = final_answer(_visible_completion(record), plain=not is_cut)
    return stated is not None and _normal(stated) == _normal(str(record["answer"]))


def _visible_completion(record: Record) -> str:
    prompt = str(record["prompt"]) if "prompt" in record else ""
    completion = str(record["completion"]) if "completion" in record else ""
    return visible_text(completion, prefilled=prefills_think(prompt))


def _normal(answer: str) -> str | Fraction:
    """Return a number as its value, `1,200` as `1200`; other text in lower case with single spaces."""
    text = " ".join(answer.split()).rstrip(".").casefold()
    number = text.replace("\N{MINUS SIGN}", "-").replace(",", "").removeprefix("$")
    return Fraction(number) if _NUMBER.fullmatch(number) else text
