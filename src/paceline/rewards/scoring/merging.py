"""Scores of several batches as those of one, and of a part of a batch."""

import math
from collections.abc import Sequence
from dataclasses import replace

from paceline.rewards.scoring.grading import Tally
from paceline.rewards.scoring.scores import Scores


def merge_scores(parts: Sequence[Scores]) -> Scores:
    """The scores of the parts end to end; there is at least one, and all have the same functions."""
    names = parts[0].values.keys()
    starts = [sum(_count(part) for part in parts[:index]) for index in range(len(parts))]
    return Scores(
        values={name: tuple(value for part in parts for value in part.values[name]) for name in names},
        failed={
            name: tuple(start + at for start, part in zip(starts, parts, strict=True) for at in part.failed[name])
            for name in names
        },
        seconds={name: math.fsum(part.seconds[name] for part in parts) for name in names},
        first_failures={name: why for part in reversed(parts) for name, why in part.first_failures.items()},
        notes={name: tuple(note for part in parts for note in part.notes[name]) for name in names},
        tallies={name: sum((part.tallies[name] for part in parts), Tally()) for name in names},
        formed=tuple(one for part in parts for one in part.formed),
    )


def part_of(scores: Scores, first: int, size: int) -> Scores:
    """The scores of `size` completions from the one at `first`; what is said of calls stays that of the whole batch."""
    rows = range(first, first + size)
    return replace(
        scores,
        values={name: values[first : first + size] for name, values in scores.values.items()},
        failed={name: tuple(row - first for row in failed if row in rows) for name, failed in scores.failed.items()},
        notes={name: notes[first : first + size] for name, notes in scores.notes.items()},
        formed=scores.formed[first : first + size],
    )


def _count(scores: Scores) -> int:
    return len(next(iter(scores.values.values())))
