"""Completions to look at first, by stated rules. Pure: the same columns give the same marks.

A completion is `well paid` if its reward lies in the upper tenth of the range that rewards have in the run.
"""

import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from paceline.metrics.definitions import Record
from paceline.metrics.statistics import mean_of
from paceline.reports.page.reading import value_at
from paceline.reports.viewer.columns import LOOP_CHARACTERS, CompletionColumns
from paceline.types import EpisodeEnd

LONG = 64
"""Tokens from which equal texts are no coincidence: a policy that is sure of a task says the same in a few words."""
LOOP = 0.2
"""Share of its bytes that zlib leaves of a text."""
TIMES = 3
OUTLIER = 5.0
"""Median absolute deviations from the step's median."""
RISE = 0.1
"""Share of the range of rewards by which the mean has risen before held-out accuracy is asked whether it did too."""

BROKEN_ENDS: tuple[EpisodeEnd, ...] = ("failed", "timed_out")
"""Ends of a conversation that its environment is to blame for."""

RULES: Mapping[str, str] = {
    "unearned": "well paid in a step where training earns more than at first and held-out accuracy has not kept up: "
    f"from the first tenth of the steps to those around it the mean reward has risen by at least {100 * RISE:.0f} % of "
    "the range of rewards, and held-out accuracy since the first evaluation by less than a quarter of that",
    "overruled": "well paid although the function that grades evaluations gave its lowest score",
    "cut off": "well paid although it was cut at the greatest length before it ended",
    "reused": "well paid for a text that is well paid, word for word, under a prompt with another gold answer too",
    "failed": "a conversation whose environment failed or took too long, however it was paid",
    "repeated": f"at least half of its group of 4 or more has the same text of at least {LONG} tokens",
    "loop": f"a text of {LOOP_CHARACTERS} characters or more that zlib packs to less than {100 * LOOP:.0f} %: "
    "it repeats itself",
    "length": f"at least {TIMES} times as long as the median of its step or as short, and more than {OUTLIER:g} median "
    "absolute deviations away from it",
}
"""By name, what is suspicious, in the words of the page; the first ones weigh most where marks are as many."""

NAMES = tuple(RULES)


def marks(parts: Sequence[CompletionColumns], evals: Sequence[Record], grader: str) -> list[int]:
    """Return the rules that hold for every completion of all parts, in order, as a bit mask over `NAMES`.

    `evals` are the lines of `evals.jsonl`. Held-out completions are not asked: they earned nothing.
    """
    # what each completion is compared with, made of all of them; None where all are alike
    training = [part for part in parts if part.is_training]
    of_steps = {part.part.step: [reward for reward in part.rewards if reward is not None] for part in training}
    rewards = [reward for of_step in of_steps.values() for reward in of_step]
    paid = well_paid(rewards)
    span = max(rewards) - min(rewards) if rewards else 0.0
    grades = {value for part in training for value in part.of_functions.get(grader, ()) if value is not None}
    lowest_grade = min(grades) if len(grades) > 1 else None
    means = {step: mean_of(of_step) for step, of_step in of_steps.items() if of_step}
    unearned, reused = steps_unearned(means, evals, span=span), _reused_texts(training, paid)
    bits: list[int] = []
    for part in parts:
        if not part.is_training:
            bits += [0] * len(part.rewards)
            continue
        repeated, outliers = frozenset(_repeated(part)), frozenset(length_outliers(part.tokens))
        by_grader = part.of_functions.get(grader, (None,) * len(part.rewards))
        for row, reward in enumerate(part.rewards):
            is_paid = _is_paid(reward, paid)
            holds = (
                is_paid and part.part.step in unearned,
                is_paid and by_grader[row] is not None and by_grader[row] == lowest_grade,
                is_paid and part.finish[row] == "length",
                is_paid and part.texts[row] in reused,
                part.ends[row] in BROKEN_ENDS,
                row in repeated,
                part.packed[row] < LOOP,
                row in outliers,
            )
            bits.append(sum(1 << bit for bit, holds_here in enumerate(holds) if holds_here))
    return bits


def _is_paid(reward: float | None, paid: float | None) -> bool:
    return reward is not None and paid is not None and reward >= paid


def well_paid(rewards: Sequence[float | None]) -> float | None:
    """The reward from which a completion is well paid; None: all rewards are equal, or there is none.

    >>> well_paid([0.0, None, 2.0])
    1.8
    """
    there = [reward for reward in rewards if reward is not None]
    low, high = min(there, default=0.0), max(there, default=0.0)
    return low + 0.9 * (high - low) if high > low else None


def steps_unearned(means: Mapping[int, float], evals: Sequence[Record], *, span: float) -> frozenset[int]:
    """The steps between two evaluations, or behind the last, whose rise in reward held-out accuracy does not share.

    `span` is the range of rewards. The first set that was evaluated counts. The steps up to an evaluation are held to
    it, those behind the last one to that; what their mean has risen from is the mean of the first tenth of all steps.
    """
    points = sorted(
        (int(record["step"]), accuracy)
        for record in evals
        if record["set"] == evals[0]["set"] and (accuracy := value_at(record, "accuracy")) is not None
    )
    if len(points) < 2 or span <= 0 or not means:
        return frozenset()
    steps = sorted(means)
    start = mean_of([means[step] for step in steps[: max(1, len(steps) // 10)]])
    bounds = [-math.inf, *(step for step, _ in points[1:-1]), math.inf]
    unearned: set[int] = set()
    for (first, last), (_, accuracy) in zip(itertools.pairwise(bounds), points[1:], strict=True):
        inside = [step for step in steps if first < step <= last]
        if inside:
            rise = (mean_of([means[step] for step in inside]) - start) / span
            if rise >= RISE and accuracy - points[0][1] < rise / 4:
                unearned.update(inside)
    return frozenset(unearned)


def _reused_texts(parts: Sequence[CompletionColumns], paid: float | None) -> frozenset[int]:
    """Checksums of texts that earn at least `paid` under prompts of different gold answers."""
    answers: defaultdict[int, set[str]] = defaultdict(set)
    for part in parts:
        of_rows = (answer for answer, size in zip(part.answers, part.sizes, strict=True) for _ in range(size))
        for answer, text, reward in zip(of_rows, part.texts, part.rewards, strict=True):
            if answer is not None and _is_paid(reward, paid):
                answers[text].add(answer)
    return frozenset(text for text, of_text in answers.items() if len(of_text) > 1)


def length_outliers(lengths: Sequence[int]) -> list[int]:
    """Positions of lengths far from the median; none among fewer than 8.

    >>> length_outliers([20, 21, 19, 20, 22, 18, 20, 64])
    [7]
    """
    if len(lengths) < 8:
        return []
    median = statistics.median(lengths)
    deviation = max(1.0, statistics.median(abs(length - median) for length in lengths))
    return [
        at
        for at, length in enumerate(lengths)
        if abs(length - median) > OUTLIER * deviation and not median / TIMES < length < TIMES * median
    ]


def _repeated(part: CompletionColumns) -> Iterator[int]:
    start = 0
    for size in part.sizes:
        rows = range(start, start + size)
        start += size
        counts = Counter(part.texts[row] for row in rows if part.tokens[row] >= LONG)
        if size >= 4:
            yield from (row for row in rows if 2 * counts[part.texts[row]] >= size)
